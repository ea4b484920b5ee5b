"""Which retries and which time limit each kind of call gets.

Inner retries repeat the same request (same idempotency key); outer retries make a new one for as
long as the patience of the configuration lasts. ``timeout`` of None means the configured one.
"""

from dataclasses import dataclass

from tinkex.wire import limits


@dataclass(frozen=True, slots=True)
class Purpose:
    name: str
    inner: bool = True
    outer: bool = True
    timeout: float | None = None


CLIENT_CONFIG = Purpose("client_config")
DYNAMIC_CONFIG = Purpose("dynamic_config", inner=False, timeout=limits.DYNAMIC_CONFIG_TIMEOUT)
DYNAMIC_REFRESH = Purpose(
    "dynamic_refresh", inner=False, outer=False, timeout=limits.DYNAMIC_CONFIG_TIMEOUT
)
TOKEN = Purpose("token", outer=False)
SESSION = Purpose("session", outer=False)
JOIN = Purpose("join")
HEARTBEAT = Purpose("heartbeat", inner=False, outer=False, timeout=limits.HEARTBEAT_TIMEOUT)
CREATE_MODEL = Purpose("create_model", outer=False)
TRAINING = Purpose("training")
SAVE = Purpose("save", inner=False)
FINISH = Purpose("finish")
# A failed sample surfaces; whether it is sent again is the caller's RetryConfig.
SAMPLE = Purpose("sample", inner=False, outer=False)
POLL = Purpose("poll", inner=False, outer=False, timeout=limits.POLL_TIMEOUT)
CANCEL = Purpose("cancel", inner=False, timeout=limits.CANCEL_TIMEOUT)
TELEMETRY = Purpose("telemetry", inner=False, outer=False, timeout=limits.TELEMETRY_TIMEOUT)
REST = Purpose("rest")
PROBE = Purpose("probe", inner=False, outer=False)
