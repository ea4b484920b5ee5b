"""One exercise per public method of the clients, sync and async: it calls, and checks the answer.

Each function is registered under the methods it proves. They share a `World` and leave it usable.
They run in the order of these imports.
"""

from compat.exercises import service as service  # isort: skip
from compat.exercises import training as training  # isort: skip
from compat.exercises import sampling as sampling  # isort: skip
from compat.exercises import futures as futures  # isort: skip
from compat.exercises import runs as runs  # isort: skip
from compat.exercises import checkpoints as checkpoints  # isort: skip
from compat.exercises import sessions as sessions  # isort: skip
from compat.exercises import accounts as accounts  # isort: skip
from compat.exercises.registry import EXERCISES as EXERCISES
