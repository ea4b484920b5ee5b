"""Why the engine refused or failed. Messages name the field, the limit and the fix.

EngineError             something went wrong inside; the command changed nothing
└── UserError           the caller's mistake
    └── ModelError      a model folder that cannot be served as it is
"""

from __future__ import annotations


class EngineError(Exception):
    """A command failed through no fault of its sender. Nothing it touched has changed."""


class UserError(EngineError):
    """A command cannot be carried out as it was sent. Nothing has changed."""


class ModelError(UserError):
    """A model folder is damaged, incomplete, or of a kind this engine does not compute."""
