"""Errors as events: whose fault a failed command is, in words that its sender can act on."""

from __future__ import annotations

import logging

import torch

from tinkex.engine.errors import EngineError, OutOfReach, UnknownRun, UserError
from tinkex.engine.messages import Failed

logger = logging.getLogger(__name__)


def failure(op: str, error: Exception) -> Failed:
    """Mistakes of the sender are theirs to read; anything else is logged with its trace."""
    if isinstance(error, UserError):
        return Failed(op, "user", str(error))
    if isinstance(error, UnknownRun | OutOfReach):
        return Failed(op, "lost", str(error))
    logger.error("command %s failed", op, exc_info=error)
    release_memory(error)
    return Failed(op, "server", short(error))


def short(error: Exception) -> str:
    if isinstance(error, torch.OutOfMemoryError | MemoryError):
        return (
            "out of memory: send less at once, or leave more to a training pass (tinkex serve "
            "--engine NAME=NUMBER with a smaller kv_bytes, run_bytes or micro_batch_tokens)"
        )
    text = str(error) if isinstance(error, EngineError) else f"{type(error).__name__}: {error}"
    return text[:500]


def release_memory(error: Exception) -> None:
    if isinstance(error, torch.OutOfMemoryError):
        torch.cuda.empty_cache()
