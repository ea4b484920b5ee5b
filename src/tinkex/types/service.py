"""The service itself: its flags, its models, its health, and who is asking."""

from typing import Literal

from tinkex.types.strictness import Lenient, Strict


class ClientConfigRequest(Strict):
    """Asks for the flags of a client, by its version."""

    sdk_version: str


class ClientConfigResponse(Lenient):
    """Flags fetched once per client. A server states only what differs from these defaults."""

    pjwt_auth_enabled: bool = False
    credential_default_source: str = "api_key"
    sample_dispatch_bytes_semaphore_size: int = 10 * 1024 * 1024
    inflight_response_bytes_semaphore_size: int = 50 * 1024 * 1024
    parallel_fwdbwd_chunks: bool = True
    proto_compress_fwdbwd: bool = False
    fwdbwd_max_chunk_len: int = 1024
    fwdbwd_max_chunk_bytes_count: int = 5_000_000
    fwdbwd_dispatch_bytes_semaphore_size: int = 50_000_000
    billing_exception_max_pause_duration_sec: int = 3600
    sample_no_retries: bool = False
    sample_enable_stuck_detection: bool = True
    sample_max_concurrent_requests: int = 2000
    use_pyqwest_transport: bool = True
    create_model_via_load_weights: bool = False
    sample_use_retrieve_futures: bool = False
    custom_loss_server_side: bool = False
    sample_join_sampling_session: bool = False


class ClientDynamicConfigResponse(Lenient):
    """Flags fetched again every `refresh_interval_sec`."""

    refresh_interval_sec: int = 300
    sample_cancel_enabled: bool = False
    sample_cancel_max_batch_size: int = 64


class SupportedModel(Lenient):
    """A model the server offers, how long its context is and what can be done with it.

    `max_training_length` is of this project's servers alone: tokens of a trained sequence that the
    device's memory is planned for.
    """

    model_name: str | None = None
    max_context_length: int | None = None
    trainable: bool | None = None
    sampleable: bool | None = None
    max_training_length: int | None = None


class GetServerCapabilitiesResponse(Lenient):
    """The models a server offers."""

    supported_models: list[SupportedModel]


class HealthResponse(Lenient):
    """Whether the server is ready."""

    status: Literal["ok"]


class AuthTokenResponse(Lenient):
    """The JWT a credential was traded for."""

    jwt: str


class WhoamiResponse(Lenient):
    """The user and the organization of a credential."""

    user_urn: str
    org_urn: str
    email: str | None = None
