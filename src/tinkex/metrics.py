"""``tinkex.metrics``: counters and latency percentiles of an event bus."""

from tinkex.client.events.metrics import Latency as Latency
from tinkex.client.events.metrics import Metrics as Metrics
from tinkex.client.events.metrics import Snapshot as Snapshot
