"""Requests that the official package sends without a type, and those of our server's additions.

Not among the public names: users call the methods that send them.
"""

from tinkex.types.sessions import ClientSessionFinishReason, ClientSessionFinishSuccess
from tinkex.types.strictness import Strict, defaults


class OperationAddress(Strict):
    """What every operation of a run begins with: the run, and its number in that run's order."""

    model_id: str
    seq_id: int


class LoadAddress(OperationAddress):
    """What of a load must be right at once: a token is exchanged before anything is kept."""

    weights_access_token: str | None = None


class FinishSessionRequest(Strict):
    """How a client ends its session."""

    reason: ClientSessionFinishReason = defaults(ClientSessionFinishSuccess)
    detail: str | None = None


class SessionProjectRequest(Strict):
    """Puts a session into a project."""

    project_id: str


class CancelFutureRequest(Strict):
    """Gives a sample up."""

    request_id: str


class WeightsInfoRequest(Strict):
    """Asks how a checkpoint was made."""

    tinker_path: str


class CheckpointTtlRequest(Strict):
    """How much longer a checkpoint is kept; without a number, for good."""

    ttl_seconds: int | None = None


class RunNameRequest(Strict):
    """Names a run, or takes its name away."""

    name: str | None = None


class RunNoteRequest(Strict):
    """Keeps a remark with a run, or takes it away."""

    note: str | None = None


class EngineRequest(Strict):
    """Names an engine of a server, such as tinkex/tiny-llama#1."""

    engine: str


class RestartEngineRequest(Strict):
    """Names an engine to restart; without one, all are, one after another."""

    engine: str | None = None


class DashboardSignInRequest(Strict):
    """Begins a visit of the dashboard, with a key or by invitation."""

    key: str | None = None
    invitation: str | None = None
