"""Where an operation belongs: a run, and its number in that run's order."""

from __future__ import annotations

from tinkex.server.protocol.fields import Fields

SEQ_LIMIT = 2**31 - 1


def read(fields: Fields) -> tuple[str, int]:
    """(`model_id`, `seq_id`): the fields every operation has."""
    return fields.text("model_id"), fields.integer("seq_id", low=1, high=SEQ_LIMIT)
