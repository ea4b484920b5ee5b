"""create_model: a run begins with fresh adapters."""

from __future__ import annotations

import json
from typing import Any

from tinkex.engine.messages import CreateRun, LoraSpec, Result
from tinkex.server.operations.base import Around, Conclusion, OperationKind, Prepared
from tinkex.server.operations.log import Entry
from tinkex.server.operations.run import Run
from tinkex.server.protocol.outcomes import success
from tinkex.server.storage.database.runs import RunRow


def body_of(row: RunRow) -> bytes:
    """What the log keeps of a creation: everything needed to repeat it, including the seed."""
    return json.dumps({"lora": _lora(row), "optimizer": row.optimizer}, sort_keys=True).encode()


async def _prepare(_: Around, run: Run, entry: Entry, body: bytes) -> Prepared:
    asked = json.loads(body)
    command = CreateRun(
        op=entry.request_id,
        run=run.model_id,
        lora=LoraSpec(**asked["lora"]),
        optimizer=json.loads(asked["optimizer"])["type"],
    )

    async def conclude(_: Result) -> Conclusion:
        return Conclusion(success({"model_id": run.model_id, "type": entry.kind.name}))

    return Prepared((command,), conclude)


def _lora(row: RunRow) -> dict[str, Any]:
    return {
        "rank": row.rank,
        "seed": row.seed,
        "train_attn": row.train_attn,
        "train_mlp": row.train_mlp,
        "train_unembed": row.train_unembed,
    }


CREATE_MODEL = OperationKind(name="create_model", changes="weights", prepare=_prepare)
