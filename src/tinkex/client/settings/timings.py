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

    # attempts after the first, while the server answers that it is busy or broken
    inner_retries: int = 10
    inner_delay_first: float = 0.5  # before the second attempt; doubles from there
    inner_delay_max: float = 10.0  # longest pause between two attempts
    retry_after_max: float = 60.0  # longest pause that a server may ask for
    outer_window: float = 300.0  # how long a server that cannot be reached is tried again
    outer_delay_first: float = 1.0  # before the first of those attempts; doubles from there
    outer_delay_max: float = 30.0  # longest pause between them
    billing_window: float = float("inf")  # how long an unpaid account is waited for
    billing_delay: float = 5.0  # between two looks whether it is paid
    billing_log_interval: float = 60.0  # between two lines about it
    billing_incident_reset: float = 300.0  # quiet time after which it counts as a new one
    # longest pause between two polls that failed, and two probes of a lost server
    poll_delay_max: float = 30.0
    poll_delay_first: float = 1.0  # after the first poll that failed; doubles from there
    poll_bad_requests: int = 3  # refused polls in a row that are still tried again
    batch_poll_delay: float = 1.0  # after a batched poll that failed
    sample_hold_small: float = 1.0  # no new samples after one of few bytes was told to wait
    sample_hold_large: float = 5.0  # the same after one of many bytes
    # how long after being told to wait samples are sent more slowly
    sample_throttle_window: float = 10.0
    heartbeat_interval: float = HEARTBEAT_INTERVAL  # between two heartbeats of a session
    heartbeat_warn_after: float = 120.0  # unanswered heartbeats for so long are warned of
    dynamic_refresh_floor: float = 10.0  # shortest time between two looks at the server's flags
    queue_log_interval: float = 60.0  # between two lines about why something waits
    outage_log_after: float = 2.0  # how long a server must be away before that is said
    put_off_log_after: float = 10.0  # how long a call must be put off before that is said
    outage_probe_delay: float = 0.5  # before the first probe of a lost server
    telemetry_interval: float = 10.0  # between two batches of telemetry
    telemetry_drain: float = 5.0  # longest wait for the last batch when a client closes
    trace_export_interval: float = 5.0  # between two looks whether a trace has been exported
    token_refresh_before: float = 300.0  # a token that lasts no longer is renewed in the background
    token_refresh_needed: float = 60.0  # one that lasts no longer is renewed before the call
    token_retry_delay: float = 60.0  # after a renewal that failed

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
