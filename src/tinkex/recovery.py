"""``tinkex.recovery``: go on from the last checkpoint when a run is lost."""

from tinkex.client.recovery import NoCheckpointError as NoCheckpointError
from tinkex.client.recovery import RecoveryPolicy as RecoveryPolicy
from tinkex.client.recovery import is_lost as is_lost
from tinkex.client.recovery import recover as recover
from tinkex.client.recovery import run_with_recovery as run_with_recovery
