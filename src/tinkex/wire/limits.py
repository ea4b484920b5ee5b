"""Every number and fixed name of the protocol, once, named after what it means.

Policy that one side is free to choose (retry budgets, page sizes) is not here: it lives with the
side that chooses it.
"""

from typing import Final

PROTOCOL_VERSION = "0.36.0"
"""The client version we speak: sent as `sdk_version` and in the version headers."""

# ---- content types and headers

JSON_TYPE = "application/json"
PROTOBUF_TYPE = "application/x-protobuf"
ZSTD_ENCODING = "zstd"

HEADER_API_KEY = "X-API-Key"
HEADER_IDEMPOTENCY_KEY = "X-Idempotency-Key"
HEADER_REQUEST_TYPE = "X-Tinker-Request-Type"
HEADER_REQUEST_ITERATION = "X-Tinker-Request-Iteration"
HEADER_PROMISE_ROUNDTRIP = "X-Tinker-Create-Promise-Roundtrip-Time"
HEADER_SAMPLING_BACKPRESSURE = "X-Tinker-Sampling-Backpressure"
HEADER_WEIGHTS_ACCESS_TOKEN = "X-Tinker-Weights-Access-Token"
HEADER_SDK_VERSION = "x-sdk-version"
HEADER_SDK_METHOD = "x-sdk-method"
HEADER_RETRY_AFTER_MS = "retry-after-ms"
HEADER_RETRY_AFTER = "retry-after"
HOSTED_URL = "https://tinker.thinkingmachines.dev/services/tinker-prod"
HEADER_SHOULD_RETRY = "x-should-retry"
HEADER_DEPRECATION_NOTE = "x-deprecation-note"
HEADER_DEPRECATION_LEVEL = "x-deprecation-level"

API_KEY_PREFIX = "tml-"
JWT_PREFIX = "eyJ"
KEY_PREFIXES = (API_KEY_PREFIX, JWT_PREFIX)
LOCAL_API_KEY = f"{API_KEY_PREFIX}local"
"""The key of whoever needs none: on their own machine."""

# ---- futures

PENDING_TYPE = "try_again"
METADATA_STATUS = "complete_metadata"
QUEUE_ACTIVE: Final = "active"
QUEUE_PAUSED_CAPACITY: Final = "paused_capacity"
QUEUE_PAUSED_RATE_LIMIT: Final = "paused_rate_limit"

REQUEST_TIMEOUT = 60.0
CONNECT_TIMEOUT = 5.0
POLL_TIMEOUT = 45.0
CANCEL_TIMEOUT = 30.0
HEARTBEAT_TIMEOUT = 10.0
DYNAMIC_CONFIG_TIMEOUT = 10.0
TELEMETRY_TIMEOUT = 5.0
HEARTBEAT_INTERVAL = 10.0

# ---- sequences of requests

FIRST_TRAINING_SEQ_ID = 1
FIRST_SAMPLING_SEQ_ID = 0
SAMPLER_CLONE_STRIDE = 10**9
"""The first `seq_id` of the n-th clone of a sampler is n times this."""
MAX_CLONE_ID = 10**9
MAX_FWDBWD_SEQ_ID = 2**31 - 1

# ---- payloads

BYTES_PER_TEXT_TOKEN = 4
BYTES_PER_SAMPLED_PROMPT_TOKEN = 10
"""What a prompt token counts for in the sampling budget, where it travels as JSON."""
SMALL_SAMPLE_BYTES = 128 * 1024
"""Up to this estimate a throttled sample is held for the shorter time."""

SKIPPED_TARGET = -1
"""A cell of `target_prompt_logprobs` that asks for nothing."""

MAX_DATUMS_PER_REQUEST = 65_536
MAX_REQUEST_BYTES = 256 * 1024 * 1024
"""No body is larger than this once decompressed, unless a side sets its own limit."""

# ---- checkpoints

MIN_TTL_SECONDS = 3600
MAX_TTL_SECONDS = 10 * 365 * 24 * 3600
MAX_AGE_RECIPIENTS = 10
MAX_NAME_LENGTH = 255

# ---- telemetry

TELEMETRY_BATCH = 100
TELEMETRY_QUEUE = 10_000

# ---- custom losses

MAX_CUSTOM_LOSS_INPUTS = 16
