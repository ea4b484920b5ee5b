"""Fine-tune language models through the Tinker API.

`import tinkex as tinker` runs a script written for the official package. Every public name is
loaded when it is first read, so importing this module costs a millisecond and no dependency.
"""

from importlib import import_module

from tinkex import compat

TYPE_CHECKING = False  # importing `typing` would take longer than all the rest
if TYPE_CHECKING:
    from typing import Any

    from tinkex import events as events
    from tinkex import metrics as metrics
    from tinkex import recovery as recovery
    from tinkex import regularizers as regularizers
    from tinkex import types as types
    from tinkex.client import auth as auth
    from tinkex.client.admin import AdminClient as AdminClient
    from tinkex.client.api.retry import RetryConfig as RetryConfig
    from tinkex.client.concurrency.futures import APIFuture as APIFuture
    from tinkex.client.concurrency.futures import ResultFuture as ResultFuture
    from tinkex.client.errors import *
    from tinkex.client.events.bus import attach_logger as attach_logger
    from tinkex.client.events.mirrors import attach_mirror as attach_mirror
    from tinkex.client.rest import RestClient as RestClient
    from tinkex.client.sampling.client import SamplingClient as SamplingClient
    from tinkex.client.sampling.streaming import SampleStream as SampleStream
    from tinkex.client.sampling.streaming import StreamedTokens as StreamedTokens
    from tinkex.client.service import ServiceClient as ServiceClient
    from tinkex.client.settings.breaker import BreakerConfig as BreakerConfig
    from tinkex.client.settings.config import Config as Config
    from tinkex.client.settings.config import RequestOptions as RequestOptions
    from tinkex.client.settings.config import Timeout as Timeout
    from tinkex.client.settings.queue_state import QueueState as QueueState
    from tinkex.client.settings.queue_state import QueueStateObserver as QueueStateObserver
    from tinkex.client.settings.timings import Timings as Timings
    from tinkex.client.training.client import TrainingClient as TrainingClient
    from tinkex.client.training.custom_loss import LossHandle as LossHandle
    from tinkex.client.training.custom_loss import PerDatumLossFn as PerDatumLossFn
    from tinkex.types.checkpoints import *
    from tinkex.types.datum import *
    from tinkex.types.model_input import *
    from tinkex.types.models import *
    from tinkex.types.optimizer import *
    from tinkex.types.provenance import *
    from tinkex.types.sampling import *
    from tinkex.types.tensor_data import *
    from tinkex.types.tinker_path import *

    __version__: str

__title__ = "tinkex"

_NAMES = {
    "client.service": "ServiceClient",
    "client.training.client": "TrainingClient",
    "client.sampling.client": "SamplingClient",
    "client.rest": "RestClient",
    "client.admin": "AdminClient",
    "client.concurrency.futures": "APIFuture ResultFuture",
    "client.training.custom_loss": "LossHandle PerDatumLossFn",
    "client.settings.config": "Config RequestOptions Timeout",
    "client.api.retry": "RetryConfig",
    "client.settings.breaker": "BreakerConfig",
    "client.settings.timings": "Timings",
    "client.sampling.streaming": "SampleStream StreamedTokens",
    "client.events.bus": "attach_logger",
    "client.events.mirrors": "attach_mirror",
    "client.settings.queue_state": "QueueState QueueStateObserver",
    "client.errors": (
        "TinkerError APIError APIStatusError APITimeoutError APIConnectionError "
        "APIResponseValidationError RequestFailedError BadRequestError AuthenticationError "
        "BillingError PermissionDeniedError NotFoundError ConflictError UnprocessableEntityError "
        "RateLimitError InternalServerError ExperimentalWarning CircuitOpenError "
        "FutureRetrievalError RetryableException ClientClosedError TokenizerError "
        "InvalidArgumentError InvalidDataError"
    ),
    "types": (
        "AdamOptimizerConfig AdamParams DimuonOptimizerConfig DimuonParams OptimParams Checkpoint "
        "CheckpointType Datum DmelChunk EncodedTextChunk ForwardBackwardOutput "
        "SampledProvenanceSpan LoraConfig ModelID ModelInput ModelInputChunk OptimStepRequest "
        "OptimStepResponse ParsedCheckpointTinkerPath PromptProvenanceSpan SampledSequence "
        "SampleRequest SampleResponse SamplingParams StopReason TensorData TensorDtype TrainingRun"
    ),
}
"""Module -> the public names it gives to this one."""

_HOME = {name: module for module, names in _NAMES.items() for name in names.split()}
_SUBMODULES = ("types", "auth", "events", "metrics", "recovery", "regularizers")

__all__ = [*_HOME, *_SUBMODULES, "__title__", "__version__"]


def __getattr__(name: str) -> "Any":
    value = _found(name)
    if isinstance(value, type) and value.__module__.startswith("tinkex."):
        value.__module__ = "tinkex"  # public classes show where users find them
    globals()[name] = value
    return value


def _found(name: str) -> "Any":
    if name in _HOME:
        return getattr(import_module(f"tinkex.{_HOME[name]}"), name)
    if name == "__version__":
        return import_module("importlib.metadata").version("tinkex")
    if name in _SUBMODULES or compat.is_module(f"tinkex.{name}"):
        return import_module(f"tinkex.{name}")
    raise AttributeError(f"module 'tinkex' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})


compat.install()
