"""Why the engine refused or failed. Messages name the field, the limit and the fix.

EngineError             something went wrong inside; the command changed nothing
├── UnknownRun          this engine has no such run: it was never made here, or let go
├── OutOfReach          weights that lie elsewhere could not be fetched for now
└── UserError           the caller's mistake
    └── ModelError      a model folder that cannot be served as it is
"""

from __future__ import annotations


class EngineError(Exception):
    """A command failed through no fault of its sender. Nothing it touched has changed."""


class UnknownRun(EngineError):
    """A command for a run that is not in this engine's memory. Nothing has changed."""


class OutOfReach(EngineError):
    """Weights are not on this host and could not be fetched. Nothing has changed."""


class UserError(EngineError):
    """A command cannot be carried out as it was sent. Nothing has changed."""


class ModelError(UserError):
    """A model folder is damaged, incomplete, or of a kind this engine does not compute."""
