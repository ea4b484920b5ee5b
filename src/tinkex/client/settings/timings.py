"""How long the SDK waits, and how often it tries again: every delay and count in one value.

Part of a ``Config``, so that a command-line tool can be impatient and a test need not sleep.
The defaults are those of the protocol.
"""

from dataclasses import dataclass, fields, replace

from tinkex.wire.limits import HEARTBEAT_INTERVAL

_COUNTS = frozenset({"inner_retries", "poll_bad_requests"})


@dataclass(frozen=True)
class Timings:
    """All values are seconds, except the counts ``inner_retries`` and ``poll_bad_requests``."""

    inner_retries: int = 10
    inner_delay_first: float = 0.5
    inner_delay_max: float = 10.0
    retry_after_max: float = 60.0
    outer_window: float = 300.0
    outer_delay_first: float = 1.0
    outer_delay_max: float = 30.0
    billing_window: float = float("inf")
    billing_delay: float = 5.0
    billing_log_interval: float = 60.0
    billing_incident_reset: float = 300.0
    poll_delay_max: float = 30.0
    poll_delay_first: float = 1.0
    poll_bad_requests: int = 3
    batch_poll_delay: float = 1.0
    sample_hold_small: float = 1.0
    sample_hold_large: float = 5.0
    sample_throttle_window: float = 10.0
    heartbeat_interval: float = HEARTBEAT_INTERVAL
    heartbeat_warn_after: float = 120.0
    dynamic_refresh_floor: float = 10.0
    queue_log_interval: float = 60.0
    outage_log_after: float = 2.0
    outage_probe_delay: float = 0.5
    telemetry_interval: float = 10.0
    telemetry_drain: float = 5.0
    trace_export_interval: float = 5.0
    token_refresh_before: float = 300.0
    token_refresh_needed: float = 60.0
    token_retry_delay: float = 60.0

    def scaled(self, factor: float) -> "Timings":
        """Every duration multiplied by ``factor``; counts stay as they are."""
        return replace(
            self,
            **{
                item.name: getattr(self, item.name) * factor
                for item in fields(self)
                if item.name not in _COUNTS
            },
        )

    @classmethod
    def impatient(cls) -> "Timings":
        """For a person waiting at a terminal: a few quick attempts, then the error."""
        return cls(
            inner_retries=2,
            inner_delay_max=2.0,
            outer_window=0.0,
            billing_window=0.0,
            outage_log_after=60.0,
        )
