"""``tinkex.regularizers``: terms that keep a custom loss near a reference, or away from one."""

from tinkex.client.training.regularizers import Regularizer as Regularizer
from tinkex.client.training.regularizers import entropy_bonus as entropy_bonus
from tinkex.client.training.regularizers import kl_to_reference as kl_to_reference
from tinkex.client.training.regularizers import l2_to_reference as l2_to_reference
from tinkex.client.training.regularizers import regularized as regularized
