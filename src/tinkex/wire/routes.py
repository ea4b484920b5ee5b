"""Every endpoint path, once. Braces hold the parts that vary; `{checkpoint_id}` contains a slash
and travels unescaped, as do the colons of ids.
"""

API_PREFIX = "/api/v1"

CLIENT_CONFIG = "/api/v1/client/config"
CLIENT_DYNAMIC_CONFIG = "/api/v1/client/dynamic_config"
AUTH_TOKEN = "/api/v1/auth/token"
API_KEY_ME = "/api/v1/auth/apikey/me"
HEALTH = "/api/v1/healthz"
SERVER_CAPABILITIES = "/api/v1/get_server_capabilities"
TELEMETRY = "/api/v1/telemetry"
DESCRIPTION = "/api/v1/openapi.json"  # the next three are additions of our server
TOKENIZER = "/api/v1/models/{model_name}/tokenizer"
TOKENIZER_FILE = f"{TOKENIZER}/{{file}}"
DASHBOARD_VISIT = "/api/v1/dashboard/visit"  # the next two are additions of our server
DASHBOARD_INVITATION = "/api/v1/dashboard/invitation"
DASHBOARD = "/api/dashboard"  # an addition of our server, and all below it
COLLECT_HOME = "/api/v1/home/collect"
ENGINES = "/api/v1/engines"  # the next four are additions of our server
DRAIN_ENGINE = f"{ENGINES}/drain"
RESUME_ENGINE = f"{ENGINES}/resume"
RESTART_ENGINE = f"{ENGINES}/restart"

CREATE_SESSION = "/api/v1/create_session"
SESSION_HEARTBEAT = "/api/v1/session_heartbeat"
SESSIONS = "/api/v1/sessions"
SEARCH_SESSIONS = "/api/v1/sessions/search"
SESSION = "/api/v1/sessions/{session_id}"
FINISH_SESSION = "/api/v1/sessions/{session_id}/finish"
SESSION_PROJECT = "/api/v1/sessions/{session_id}/project"
SESSION_TRACE_EXPORT = "/api/v1/sessions/{session_id}/trace_export"

CREATE_MODEL = "/api/v1/create_model"
GET_INFO = "/api/v1/get_info"
FORWARD_BACKWARD = "/api/v1/forward_backward"
OPTIM_STEP = "/api/v1/optim_step"
CREATE_CUSTOM_LOSS = "/api/v1/create_custom_loss"

SAVE_WEIGHTS = "/api/v1/save_weights"
SAVE_WEIGHTS_FOR_SAMPLER = "/api/v1/save_weights_for_sampler"
SAVE_WEIGHTS_EXTERNAL = "/api/v1/save_weights_external"
LOAD_WEIGHTS = "/api/v1/load_weights"
WEIGHTS_INFO = "/api/v1/weights_info"
COPY_WEIGHTS = "/api/v1/copy_weights"

CREATE_SAMPLING_SESSION = "/api/v1/create_sampling_session"
JOIN_SAMPLING_SESSION = "/api/v1/join_sampling_session"
ASAMPLE = "/api/v1/asample"
ASAMPLE_STREAM = "/api/v1/asample_stream"  # an addition of our server
SAMPLER = "/api/v1/samplers/{sampler_id}"

RETRIEVE_FUTURE = "/api/v1/retrieve_future"
RETRIEVE_FUTURES = "/api/v1/retrieve_futures"
CANCEL_FUTURE = "/api/v1/cancel_future"

TRAINING_RUNS = "/api/v1/training_runs"
TRAINING_RUN = "/api/v1/training_runs/{training_run_id}"
RUN_NAME = f"{TRAINING_RUN}/name"  # the next three are additions of our server
RUN_NOTE = f"{TRAINING_RUN}/note"
RUN_STOP = f"{TRAINING_RUN}/stop"
RUN_CHECKPOINTS = "/api/v1/training_runs/{training_run_id}/checkpoints"
CHECKPOINTS = "/api/v1/checkpoints"
CHECKPOINT = "/api/v1/training_runs/{training_run_id}/checkpoints/{checkpoint_id}"
CHECKPOINT_PUBLISH = f"{CHECKPOINT}/publish"
CHECKPOINT_TTL = f"{CHECKPOINT}/ttl"
CHECKPOINT_ARCHIVE = f"{CHECKPOINT}/archive"
CHECKPOINT_EXTERNAL_URLS = f"{CHECKPOINT}/external_weights_urls"
CHECKPOINT_ADAPTER_URLS = f"{CHECKPOINT}/adapter_urls"  # an addition of our server

FILES = "/api/v1/files"  # what signed links of our server lead to
ARCHIVES = "/api/v1/archives"
TRACES = "/api/v1/traces"

AUDIT_LOG = "/api/v1/audit"
BILLING_USAGE = "/api/v1/billing/usage/events"
CURRENT_CHECKPOINT_STORAGE = "/api/v1/billing/usage/checkpoints/current"
