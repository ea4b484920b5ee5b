"""A server in the test's own loop, over a fake engine, and the calls tests make of it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Container, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import numpy as np

from support.fake_engine import FakeEngine
from tinkex.server.app import create_app
from tinkex.server.core import Core
from tinkex.server.hosting.own_home import own_home
from tinkex.server.settings import Limits, ModelSpec, Scaling, Scheduling, Settings, Terms, Timings
from tinkex.server.storage.home_rows import DATABASE_VARIABLE
from tinkex.types.datum import Datum
from tinkex.types.model_input import ModelInput
from tinkex.wire.protobuf import encode_forward_backward

MODEL = "fake/model"
QUICK = Timings(
    poll_hold_s=0.5, gap_timeout_s=0.4, gap_grace_s=0.15, drain_s=0.2, restart_backoff_s=(0.01,)
)


@dataclass
class Api:
    """One tenant's calls. `post` checks the status it expects."""

    client: httpx.AsyncClient
    core: Core
    engine: FakeEngine
    key: str = "tml-alice"

    def as_tenant(self, key: str) -> Api:
        return Api(self.client, self.core, self.engine, key)

    async def send(self, method: str, path: str, **request: Any) -> httpx.Response:
        headers = {"x-api-key": self.key, **request.pop("headers", {})}
        return await self.client.request(method, f"/api/v1/{path}", headers=headers, **request)

    async def post(self, path: str, body: Mapping[str, Any], expect: int = 200) -> Any:
        response = await self.send("POST", path, json=dict(body))
        assert response.status_code == expect, (path, response.status_code, response.text)
        return response.json()

    async def session(self) -> str:
        answer = await self.post("create_session", {"tags": [], "user_metadata": {}})
        return str(answer["session_id"])

    async def model(self, session: str, number: int = 0, **lora: Any) -> str:
        body = {
            "session_id": session,
            "model_seq_id": number,
            "base_model": MODEL,
            "lora_config": {"rank": 8, **lora},
        }
        answer = await self.post("create_model", body)
        await self.result(answer["request_id"])
        return str(answer["model_id"])

    async def forward(self, model: str, seq: int, expect: int = 200, **options: Any) -> Any:
        content = options.pop("content", None) or forward_body(model, seq, **options)
        headers = {"content-type": "application/x-protobuf"}
        response = await self.send("POST", "forward_backward", content=content, headers=headers)
        assert response.status_code == expect, response.text
        return response.json()

    async def step(self, model: str, seq: int, rate: float = 0.1, expect: int = 200) -> Any:
        body = {"model_id": model, "seq_id": seq, "adam_params": {"learning_rate": rate}}
        return await self.post("optim_step", body, expect)

    async def poll(self, request_id: str) -> httpx.Response:
        body = {"request_id": request_id, "allow_metadata_only": False}
        return await self.send("POST", "retrieve_future", json=body)

    async def result(self, request_id: str) -> Any:
        """The JSON (or the protobuf bytes) a future ends with."""
        for _ in range(60):
            response = await self.poll(request_id)
            if response.status_code == 200:
                protobuf = "protobuf" in response.headers["content-type"]
                return response.content if protobuf else response.json()
            assert response.status_code == 408, response.text
        raise AssertionError(f"{request_id} never ended")

    async def on_disk(self) -> None:
        """Wait until no weights are served that are not yet written."""
        while len(self.core.unwritten):
            await asyncio.sleep(0.001)

    def applied(self, model: str) -> list[str]:
        """What the engine did to a run, its creation left out."""
        return self.engine.current.runs[model][1:]


def forward_body(
    model: str,
    seq: int,
    first: int = 1,
    loss: str = "cross_entropy",
    forward_only: bool = False,
    length: int = 3,
    config: Mapping[str, float | str] | None = None,
) -> bytes:
    tokens = [first, *range(2, length + 1)]
    datum = Datum(
        model_input=ModelInput.from_ints(tokens),
        loss_fn_inputs={
            "target_tokens": np.array(tokens, np.int64),
            "weights": np.ones(length, np.float32),
        },
    )
    return encode_forward_backward(model, seq, [datum], loss, config, forward_only)


@asynccontextmanager
async def served(
    home: Path,
    engine: FakeEngine | None = None,
    limits: Limits | None = None,
    timings: Timings = QUICK,
    scheduling: Scheduling | None = None,
    keys: Mapping[str, str] | None = None,
    operators: Container[str] = (),
    terms: Mapping[str, Terms] | None = None,
    model: str = MODEL,
    engines_on_demand: bool = False,
    record_samples: bool = True,
    engines: int = 1,
    fewest_engines: int | None = None,
    scaling: Scaling | None = None,
    objects: str | None = None,
    database: str | None = None,
) -> AsyncIterator[Api]:
    """A started server until the block ends."""
    engine = engine or FakeEngine()
    settings = Settings(
        home=home,
        models=(ModelSpec(model, "nowhere"),),
        keys=keys,
        operators=operators,
        terms=terms or {},
        engines_on_demand=engines_on_demand,
        record_samples=record_samples,
        engines=engines,
        fewest_engines=fewest_engines,
        scaling=scaling or Scaling(),
        objects=objects,
        limits=limits or Limits(),
        timings=timings,
        scheduling=scheduling or Scheduling(),
    )
    owned = own_home(home, {DATABASE_VARIABLE: database}) if database else None
    app = create_app(settings, engine.launch, home=owned)
    async with app.router.lifespan_context(app):
        transport = httpx.ASGITransport(app=app, raise_app_exceptions=False)
        async with httpx.AsyncClient(transport=transport, base_url="http://test") as client:
            yield Api(client, app.state.core, engine)
