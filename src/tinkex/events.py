"""``tinkex.events``: subscribe to what the SDK is doing, or write it to a log.

The name of every event is a constant here, and all of them are in ``NAMES``.
"""

from tinkex.client.events.bus import *
