"""Training as clients ask for it: models made, operations handed in. Parses, checks, submits."""

from __future__ import annotations

import hashlib
import json
import secrets
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from tinkex.server.operations import address, create, forward, load
from tinkex.server.operations.base import Around, OperationKind
from tinkex.server.operations.runs import Runs
from tinkex.server.protocol import new_run
from tinkex.server.protocol.fields import Fields
from tinkex.server.refusals import Refusal
from tinkex.server.storage.database.runs import RunRow
from tinkex.server.tenancy.sessions import Sessions
from tinkex.server.tenancy.tenants import Tenants
from tinkex.server.training.payload_intake import Intake
from tinkex.server.training.submission import Submission, Submissions


@dataclass(frozen=True, slots=True)
class Accepted:
    """An operation that is on disk: its future, and the run it belongs to."""

    request_id: str
    model_id: str


class Training:
    """The incoming side of training."""

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

    async def create_model(self, tenant: str, fields: Fields) -> Accepted:
        """A new run with fresh adapters. The seed is chosen now, so that a replay repeats it."""
        asked = new_run.read(fields)
        row = self._row(
            tenant,
            asked.session_id,
            asked.number,
            asked.base_model,
            optimizer=asked.optimizer,
            user_metadata=asked.user_metadata,
            rank=asked.rank,
            seed=secrets.randbits(62) if asked.seed is None else asked.seed,
            train_attn=asked.train_attn,
            train_mlp=asked.train_mlp,
            train_unembed=asked.train_unembed,
        )
        self._check_rank(asked.rank, asked.base_model)
        meant = _without_seed(row) if asked.seed is None else create.body_of(row)
        return await self._create(row, create.CREATE_MODEL, create.body_of(row), meant)

    async def create_from(self, tenant: str, fields: Fields, bearer: str | None = None) -> Accepted:
        """A new run made from a checkpoint, with the checkpoint's LoRA settings. `bearer` is whose
        it is where whoever asks may read it without a token."""
        asked = new_run.read_from(fields)
        path, bearer = asked.path, self._bearer(asked.token) or bearer
        self._sessions.alive(tenant, asked.session_id)
        found = self._around.checkpoints.find(tenant, path, bearer)
        base_model = asked.base_model or found.base_model
        source = load.source(self._around, tenant, path, bearer, base_model)
        row = self._row(
            tenant,
            asked.session_id,
            asked.number,
            source.base_model,
            optimizer=asked.optimizer_config or source.optimizer,
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
        """A forward or forward-backward pass, kept as the bytes that came."""
        write = self._submissions.may_write(tenant, len(body))
        found, draft = await self._intake.read(body, write)
        header = found.header
        kind = forward.FORWARD if header.forward_only else forward.FORWARD_BACKWARD
        asked = Submission(header.seq_id, kind, body, found.digest, found.content, draft)
        try:
            return await self._submit(tenant, header.model_id, asked)
        finally:
            self._intake.discard(draft)

    async def operation(
        self, tenant: str, kind: OperationKind, fields: Fields, body: bytes
    ) -> Accepted:
        """A JSON operation of a run; its content is checked when its turn comes."""
        model_id, seq_id = address.read(fields)
        asked = Submission(seq_id, kind, body, _digest(kind, json.loads(body)))
        return await self._submit(tenant, model_id, asked)

    async def load_weights(
        self, tenant: str, fields: Fields, body: bytes, bearer: str | None = None
    ) -> Accepted:
        """A load into a run. What is logged names the tenant behind a token, never the token."""
        address.read(fields)
        if fields.has("bearer"):
            raise Refusal("bearer is not a field of this request; send weights_access_token")
        if bearer or fields.has("weights_access_token"):
            token = fields.optional_text("weights_access_token", limit=8192)
            values = {**json.loads(body), "bearer": self._bearer(token) or bearer}
            values.pop("weights_access_token", None)
            body = _canonical(values)
        return await self.operation(tenant, load.LOAD_WEIGHTS, fields, body)

    async def _submit(self, tenant: str, model_id: str, asked: Submission) -> Accepted:
        run = self._runs.owned(tenant, model_id)
        self._sessions.alive(tenant, run.row.session_id)
        return Accepted(await self._submissions.submit(run, asked), model_id)

    async def _create(
        self, row: RunRow, kind: OperationKind, body: bytes, asked: bytes
    ) -> Accepted:
        self._sessions.alive(row.tenant, row.session_id)
        digest = hashlib.sha256(asked).digest()
        submission = Submission(0, kind, body, digest)
        return Accepted(await self._submissions.create(row, submission), row.model_id)

    def _row(
        self,
        tenant: str,
        session_id: str,
        number: int,
        base_model: str,
        **settings: Any,
    ) -> RunRow:
        self._sessions.alive(tenant, session_id)
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
        """The tenant behind a foreign access token; the token itself goes no further."""
        return None if token is None else self._tenants.identify(token)

    def _check_rank(self, rank: int, base_model: str) -> None:
        facts = self._around.engines.get(base_model).facts
        if facts is not None and rank > facts.max_rank:
            raise Refusal(f"lora_config.rank is {rank}; it must be between 1 and {facts.max_rank}")


def _without_seed(row: RunRow) -> bytes:
    """What a retry of the same request repeats: everything but the seed we chose for it."""
    values = json.loads(create.body_of(row))
    values["lora"]["seed"] = None
    return _canonical(values)


def _digest(kind: OperationKind, values: Mapping[str, Any]) -> bytes:
    """Of what a body says. A retried nameless save draws a new sampler number: no change."""
    kept = {name: value for name, value in values.items() if name != kind.uncounted}
    return hashlib.sha256(_canonical(kept)).digest()


def _canonical(values: Mapping[str, Any]) -> bytes:
    return json.dumps(values, sort_keys=True, separators=(",", ":")).encode()
