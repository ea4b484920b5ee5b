"""GET /models: what a key can name as `model`. Its own samplers, published ones, base models."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from tinkex.server.endpoints.openai.model_pages import model_page
from tinkex.server.endpoints.service import target_of
from tinkex.server.engines.pool import Engines
from tinkex.server.http.exchange import answer, core_of, tenant_of
from tinkex.server.http.queries import Query
from tinkex.server.storage.database import checkpoints
from tinkex.server.storage.database.checkpoints import CheckpointRow
from tinkex.server.storage.database.transactions import Transaction

_LISTED = 1000
_NO_ENDS = {"first_id": None, "last_id": None}


async def list_models(request: Request) -> Response:
    """What can be asked, newest first; base models, which have always been there, last."""
    core, tenant = core_of(request), tenant_of(request)
    now = core.clock.now()

    def rows(connection: Transaction) -> list[CheckpointRow]:
        return checkpoints.samplers_for(connection, tenant, now, _LISTED)

    served = [
        row for row in await core.store.browse(tenant, rows) if core.engines.find(row.base_model)
    ]
    found = [_saved(row) for row in served] + _bases(core.engines)
    here, more = model_page(Query(request.query_params)).of([each["id"] for each in found])
    found = found[here]
    ends = {"first_id": found[0]["id"], "last_id": found[-1]["id"]} if found else _NO_ENDS
    return answer({"object": "list", "data": found, **ends, "has_more": more})


async def get_model(request: Request) -> Response:
    """One of them, by its name."""
    target = await target_of(request, request.path_params["model_name"])
    if target.made_by.path is None:
        return answer(_base(target.name, target.pool.spec.name))
    row = await core_of(request).checkpoints.find(tenant_of(request), target.name)
    return answer(_saved(row))


def _bases(engines: Engines) -> list[dict[str, Any]]:
    return [_base(name, engines.get(name).spec.name) for name in engines.names()]


def _base(name: str, root: str) -> dict[str, Any]:
    return _model(name, 0, "tinkex", root=root)


def _saved(row: CheckpointRow) -> dict[str, Any]:
    owner = "published" if row.public else "you"
    return _model(row.path, int(row.created_at), owner, root=row.base_model, hash=row.digest)


def _model(name: str, created: int, owner: str, **others: Any) -> dict[str, Any]:
    """In the words of both APIs: they ask at the same address."""
    values = {"id": name, "object": "model", "created": created, "owned_by": owner}
    shown = {"type": "model", "display_name": name.rpartition("/")[2]}
    return {**values, **shown, "created_at": _moment(created), **others}


def _moment(seconds: int) -> str:
    return datetime.fromtimestamp(seconds, UTC).isoformat().replace("+00:00", "Z")
