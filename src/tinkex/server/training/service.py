"""Training as clients request it: creates runs and submits operations. Parses, checks, submits."""

from __future__ import annotations

import hashlib
import json
import secrets
from collections.abc import Mapping
from typing import Any, NamedTuple

from tinkex.server.operations import create, forward, load
from tinkex.server.operations.base import Around, OperationKind
from tinkex.server.operations.runs import Runs
from tinkex.server.protocol import requests
from tinkex.server.refusals import Refusal
from tinkex.server.storage.database.runs import RunRow
from tinkex.server.tenancy.sessions import Sessions
from tinkex.server.tenancy.tenants import Tenants
from tinkex.server.training.payload_intake import Intake
from tinkex.server.training.submission import Submission, Submissions
from tinkex.types.checkpoints import LoadWeightsRequest
from tinkex.types.models import CreateModelRequest, LoraConfig
from tinkex.types.optimizer import AdamOptimizerConfig, DimuonOptimizerConfig, OptimizerConfig


class Accepted(NamedTuple):
    """An operation that is on disk: its future, and the run it belongs to."""

    request_id: str
    model_id: str


class Training:
    """Accepts training requests."""

    def __init__(
        self,
        sessions: Sessions,
        runs: Runs,
        submissions: Submissions,
        intake: Intake,
        around: Around,
        tenants: Tenants,
    ) -> None:
        self._sessions = sessions
        self._runs = runs
        self._submissions = submissions
        self._intake = intake
        self._around = around
        self._tenants = tenants

    async def create_model(self, tenant: str, asked: CreateModelRequest) -> Accepted:
        """A new run with fresh adapters. The seed is chosen now, so that a replay uses the same
        one."""
        lora = _lora(asked)
        row = await self._row(
            tenant,
            asked.session_id,
            asked.model_seq_id,
            asked.base_model,
            optimizer=_optimizer(asked.optimizer_config),
            user_metadata=asked.user_metadata,
            rank=lora.rank,
            seed=secrets.randbits(62) if lora.seed is None else lora.seed,
            train_attn=lora.train_attn,
            train_mlp=lora.train_mlp,
            train_unembed=lora.train_unembed,
        )
        self._check_rank(lora.rank, asked.base_model)
        meant = _without_seed(row) if lora.seed is None else create.body_of(row)
        return await self._create(row, create.CREATE_MODEL, create.body_of(row), meant)

    async def create_from(
        self, tenant: str, asked: LoadWeightsRequest, bearer: str | None = None
    ) -> Accepted:
        """A new run made from a checkpoint, with the checkpoint's LoRA settings. `bearer` is the
        checkpoint's owner if the client may read it without a token."""
        assert asked.session_id is not None
        assert asked.model_seq_id is not None
        path, bearer = asked.path, self._bearer(asked.weights_access_token) or bearer
        await self._sessions.alive(tenant, asked.session_id)
        found = await self._around.checkpoints.find(tenant, path, bearer)
        base_model = asked.base_model or found.base_model
        source = await load.source(self._around, tenant, path, bearer, base_model)
        row = await self._row(
            tenant,
            asked.session_id,
            asked.model_seq_id,
            source.base_model,
            optimizer=_optimizer(asked.optimizer_config) or source.optimizer,
            user_metadata=asked.user_metadata,
            rank=source.rank,
            train_attn=source.train_attn,
            train_mlp=source.train_mlp,
            train_unembed=source.train_unembed,
        )
        family = json.loads(source.optimizer)["type"]
        body = _canonical(
            {"path": path, "optimizer": asked.optimizer, "bearer": bearer, "family": family}
        )
        return await self._create(row, load.CREATE_FROM, body, body)

    async def forward_backward(self, tenant: str, body: bytes) -> Accepted:
        """A forward or forward-backward pass; the log keeps the bytes as they arrived."""
        write = self._submissions.may_write(tenant, len(body))
        found, draft = await self._intake.read(tenant, body, write)
        header = found.header
        kind = forward.FORWARD if header.forward_only else forward.FORWARD_BACKWARD
        asked = Submission(header.seq_id, kind, body, found.digest, found.content, draft)
        try:
            return await self._submit(tenant, header.model_id, asked)
        finally:
            self._intake.discard(draft)

    async def operation(
        self, tenant: str, kind: OperationKind, values: Mapping[str, Any], body: bytes
    ) -> Accepted:
        """A JSON operation of a run; its content is checked when its turn comes."""
        address = requests.OPERATION.read(values)
        asked = Submission(address.seq_id, kind, body, _digest(kind, values))
        return await self._submit(tenant, address.model_id, asked)

    async def load_weights(
        self, tenant: str, values: Mapping[str, Any], body: bytes, bearer: str | None = None
    ) -> Accepted:
        """A load into a run. The log names the tenant behind a token, never the token."""
        token = requests.LOAD_ADDRESS.read(values).weights_access_token
        if values.get("bearer") is not None:
            raise Refusal("bearer is not a field of this request; send weights_access_token")
        if bearer or token is not None:
            values = {**values, "bearer": self._bearer(token) or bearer}
            values.pop("weights_access_token", None)
            body = _canonical(values)
        return await self.operation(tenant, load.LOAD_WEIGHTS, values, body)

    async def _submit(self, tenant: str, model_id: str, asked: Submission) -> Accepted:
        run = await self._runs.owned(tenant, model_id)
        await self._sessions.alive(tenant, run.row.session_id)
        return Accepted(await self._submissions.submit(run, asked), model_id)

    async def _create(
        self, row: RunRow, kind: OperationKind, body: bytes, asked: bytes
    ) -> Accepted:
        await self._sessions.alive(row.tenant, row.session_id)
        digest = hashlib.sha256(asked).digest()
        submission = Submission(0, kind, body, digest)
        return Accepted(await self._submissions.create(row, submission), row.model_id)

    async def _row(
        self,
        tenant: str,
        session_id: str,
        number: int,
        base_model: str,
        **settings: Any,
    ) -> RunRow:
        await self._sessions.alive(tenant, session_id)
        self._around.engines.get(base_model)
        now = self._around.clock.now()
        return RunRow(
            model_id=f"{session_id}:train:{number}",
            session_id=session_id,
            tenant=tenant,
            base_model=base_model,
            created_at=now,
            requested_at=now,
            **settings,
        )

    def _bearer(self, token: str | None) -> str | None:
        """The tenant behind a foreign access token. The token itself goes no further."""
        return None if token is None else self._tenants.identify(token)

    def _check_rank(self, rank: int, base_model: str) -> None:
        facts = self._around.engines.get(base_model).facts
        if facts is not None and rank > facts.max_rank:
            raise Refusal(f"lora_config.rank is {rank}; it must be between 1 and {facts.max_rank}")


def _lora(asked: CreateModelRequest) -> LoraConfig:
    lora = asked.lora_config
    assert lora is not None, "the reader requires it"
    if not (lora.train_attn or lora.train_mlp or lora.train_unembed):
        raise Refusal("lora_config trains nothing: set train_attn, train_mlp or train_unembed")
    return lora


def _optimizer(config: OptimizerConfig | None) -> str | None:
    """An optimizer's configuration as JSON text, as it was given; None if none was."""
    if config is None:
        return None
    if not isinstance(config, AdamOptimizerConfig | DimuonOptimizerConfig):
        raise Refusal('optimizer_config must be {"type": "adamw"}, or "dimuon" of version 1')
    said = config.model_dump(exclude_unset=True)
    return json.dumps({**said, "type": config.type}, sort_keys=True)


def _without_seed(row: RunRow) -> bytes:
    """What a repeated request has in common with the first: everything but the seed we chose."""
    values = json.loads(create.body_of(row))
    values["lora"]["seed"] = None
    return _canonical(values)


def _digest(kind: OperationKind, values: Mapping[str, Any]) -> bytes:
    """Digest of a body's meaning. A repeated unnamed save draws a new sampler number: that is no
    change."""
    kept = {name: value for name, value in values.items() if name != kind.uncounted}
    return hashlib.sha256(_canonical(kept)).digest()


def _canonical(values: Mapping[str, Any]) -> bytes:
    return json.dumps(values, sort_keys=True, separators=(",", ":")).encode()
