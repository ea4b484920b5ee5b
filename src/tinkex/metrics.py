"""``tinkex.metrics``: counters and latency percentiles of an event bus."""

from tinkex.client.metrics import Latency as Latency
from tinkex.client.metrics import Metrics as Metrics
from tinkex.client.metrics import Snapshot as Snapshot
