"""Asks the engine, before one is started, whether it could serve a model folder at all.

The engine's own reader of headers is found by name; it needs no torch, so the answer takes
milliseconds where a failing start takes seconds.
"""

from __future__ import annotations

import importlib
from pathlib import Path


def problem_with(folder: Path) -> str | None:
    """Why the model in `folder` cannot be served, in one line; None if nothing is known."""
    headers = importlib.import_module("tinkex.engine.model.headers")
    try:
        headers.check_folder(folder)
    except headers.ModelError as error:
        return str(error)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        return f"config.json cannot be understood ({type(error).__name__}: {error})"
    except OSError as error:
        return f"its files cannot be read: {error.strerror}"
    return None
