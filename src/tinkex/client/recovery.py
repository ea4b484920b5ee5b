"""Recovery from a lost or corrupted run: restart from the last checkpoint. Off unless used.

A ``RecoveryPolicy`` decides what counts as lost and how often to try; ``recover`` applies it::

    training = recover(service, training, policy=RecoveryPolicy(with_optimizer=True))

returns the same client while its run is healthy, and otherwise a new one made from the newest
training checkpoint. The caller repeats the steps after that checkpoint.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

from tinkex.client.errors import NotFoundError, RequestFailedError, RetryableException, TinkerError
from tinkex.client.events import bus as events
from tinkex.client.rest import RestClient

if TYPE_CHECKING:
    from tinkex.client.service import ServiceClient
    from tinkex.client.training.client import TrainingClient
    from tinkex.types import TrainingRun

T = TypeVar("T")


class NoCheckpointError(TinkerError):
    """The run is lost and nothing was saved to start again from."""

    @property
    def is_user_error(self) -> bool:
        """True: there is nothing to repeat; save now and then."""
        return True


@dataclass(frozen=True)
class RecoveryPolicy:
    """Whether to restore the optimizer, and how many times one piece of work may be restarted."""

    with_optimizer: bool = True
    attempts: int = 3

    def __post_init__(self) -> None:
        if self.attempts < 1:
            raise ValueError(f"attempts: must be at least 1, got {self.attempts}")


def is_lost(error: BaseException) -> bool:
    """Whether an error of a training call means that the run itself is gone or broken."""
    if isinstance(error, RetryableException | NotFoundError):
        return True
    return isinstance(error, RequestFailedError) and not error.is_user_error


def recover(
    service: ServiceClient,
    training: TrainingClient,
    *,
    policy: RecoveryPolicy | None = None,
    lost: bool = False,
) -> TrainingClient:
    """``training`` if its run is healthy, else a client that continues from its last checkpoint.

    ``lost=True`` skips the question and restarts. Raises ``NoCheckpointError`` when there is
    nothing to restart from.
    """
    run = _run(service, training.model_id)
    if not lost and run is not None and not run.corrupted:
        return training
    path = _last_checkpoint(service, training.model_id, run)
    service.config.events.emit(events.RECOVERY_STARTED, model_id=training.model_id, path=path)
    chosen = policy or RecoveryPolicy()
    create = (
        service.create_training_client_from_state_with_optimizer
        if chosen.with_optimizer
        else service.create_training_client_from_state
    )
    recovered = create(path, user_metadata=run.user_metadata if run is not None else None)
    service.config.events.emit(
        events.RECOVERY_COMPLETED, model_id=training.model_id, new_model_id=recovered.model_id
    )
    return recovered


def run_with_recovery(
    service: ServiceClient,
    training: TrainingClient,
    work: Callable[[TrainingClient], T],
    policy: RecoveryPolicy | None = None,
) -> tuple[TrainingClient, T]:
    """Call ``work`` with the client, again with a recovered one when the run is lost under it.

    Returns the client that finished and the result. ``work`` must be safe to repeat from the last
    checkpoint. The last error is raised when the attempts are used up.
    """
    chosen = policy or RecoveryPolicy()
    for attempt in range(chosen.attempts):
        try:
            return training, work(training)
        except TinkerError as error:
            if not is_lost(error) or attempt == chosen.attempts - 1:
                raise
        training = recover(service, training, policy=chosen, lost=True)
    raise AssertionError("unreachable")


def _run(service: ServiceClient, run_id: str) -> TrainingRun | None:
    try:
        return _rest(service).get_training_run(run_id).result()
    except NotFoundError:
        return None


def _last_checkpoint(service: ServiceClient, run_id: str, run: TrainingRun | None) -> str:
    if run is not None and run.last_checkpoint is not None:
        return run.last_checkpoint.tinker_path
    try:
        listed = _rest(service).list_checkpoints(run_id).result().checkpoints
    except NotFoundError:
        listed = []
    saved = [item for item in listed if item.checkpoint_type == "training"]
    if not saved:
        raise NoCheckpointError(
            f"The run {run_id} is lost and has no training checkpoint. "
            "Call save_state now and then, so that there is one next time."
        )
    return max(saved, key=lambda item: item.time).tinker_path


def _rest(service: ServiceClient) -> RestClient:
    return RestClient(service._get_rest_holder())
