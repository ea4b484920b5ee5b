"""Checkpoints: saved, found by their path, checked byte for byte, copied, published, deleted.

A save has four steps: `admit` (nothing is written yet), the engine (writes a draft folder), `seal`
(manifest, final folder, a row), `record` (the row, in the transaction that ends the operation).
Files are in immutable folders that rows and samplers point at. Knows nothing of HTTP and never
reads a tensor.
"""

from __future__ import annotations

import asyncio
import json
import secrets
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from tinkex.engine.messages import SaveResult
from tinkex.server.checkpoints import copies, encryption
from tinkex.server.checkpoints.archive import pack
from tinkex.server.checkpoints.links import LINK_LIFETIME_S
from tinkex.server.checkpoints.rules import (
    Save,
    check_name,
    check_recipients,
    check_ttl,
    parse_path,
)
from tinkex.server.clock import Clock
from tinkex.server.refusals import NotFound, Refusal
from tinkex.server.storage import manifest
from tinkex.server.storage.database import Store, audit, checkpoints, sessions, usage
from tinkex.server.storage.database.checkpoints import CheckpointRow
from tinkex.server.storage.database.transactions import Transaction
from tinkex.server.storage.folders import Folders, fill
from tinkex.server.storage.objects.store import NoSuchObject, patiently
from tinkex.server.storage.store_threads import at_store
from tinkex.types.tinker_path import checkpoint_path

REPEAT_S = 3600.0
"""Seconds for which a deletion is recognised by its key."""


class TakenName(Refusal):
    """A checkpoint of this run and kind already has the name."""


class Checkpoints:
    """The checkpoints of one home. Blocking disk work is done off the event loop."""

    def __init__(
        self,
        store: Store,
        folders: Folders,
        clock: Clock,
        name_limit: int,
        tenant_bytes: Callable[[str], int],
    ) -> None:
        self._store = store
        self._folders = folders
        self._clock = clock
        self._name_limit = name_limit
        self._tenant_bytes = tenant_bytes

    # ---- saving

    async def admit(self, save: Save) -> None:
        """Refuse a save that cannot succeed, before anything is written."""
        check_name(save.name, self._name_limit)
        check_ttl(save.ttl_seconds)
        check_recipients(save.recipients)
        await self._store.query(_check_free, save)
        used = await self._store.query(checkpoints.bytes_of, save.run.tenant)
        limit = self._tenant_bytes(save.run.tenant)
        if used >= limit:
            raise Refusal(
                f"checkpoints of this key hold {used} bytes; the limit is {limit}: "
                "delete some, or give them a ttl_seconds"
            )

    def begin(self, name: str | None = None) -> Path:
        """A draft folder for an engine to write into: sealed in the end, as `name` if one is given,
        or abandoned."""
        return self._folders.begin(name)

    def place(self, name: str) -> Path:
        """The path of the sealed folder of that name."""
        return self._folders.path(name)

    def abandon(self, draft: Path) -> None:
        self._folders.abandon(draft)

    async def seal(self, save: Save, draft: Path, saved: SaveResult) -> CheckpointRow:
        """Give a written draft its final folder. The row is returned, not stored."""
        written = await asyncio.to_thread(_finish, save, draft, saved)
        folder = await patiently(lambda: at_store(self._folders.seal, draft))
        run, now = save.run, self._clock.now()
        return CheckpointRow(
            path=save.path,
            model_id=run.model_id,
            session_id=run.session_id,
            tenant=run.tenant,
            kind=save.kind,
            name=save.name,
            folder=folder,
            base_model=run.base_model,
            rank=run.rank or 0,
            train_attn=bool(run.train_attn),
            train_mlp=bool(run.train_mlp),
            train_unembed=bool(run.train_unembed),
            optimizer=run.optimizer,
            step=saved.step,
            size_bytes=written.size_bytes,
            created_at=now,
            digest=written.digest,
            user_metadata=save.user_metadata,
            expires_at=None if save.ttl_seconds is None else now + save.ttl_seconds,
        )

    async def seal_unnamed(self, draft: Path, base_model: str, saved: SaveResult) -> None:
        """Give unnamed sampler weights their final folder."""

        def finish() -> None:
            fill(draft, saved)
            _name_base_model(draft, base_model)
            manifest.write(draft)

        await asyncio.to_thread(finish)
        await patiently(lambda: at_store(self._folders.seal, draft))

    # ---- finding and reading

    async def find(self, tenant: str, path: str, bearer: str | None = None) -> CheckpointRow:
        """A checkpoint that `tenant`, or `bearer` whose token it holds, may read."""
        parse_path(path)
        row = await self._store.read(checkpoints.get, path)
        if row is None or row.expired(self._clock.now()) or not _readable(row, tenant, bearer):
            raise NotFound(f"no checkpoint {path}: it does not exist, has expired, or is not yours")
        return row

    async def owned(self, tenant: str, path: str) -> CheckpointRow:
        """A checkpoint that `tenant` may change."""
        row = await self.find(tenant, path)
        if row.tenant != tenant:
            raise NotFound(
                f"checkpoint {path} belongs to another key: only its owner can change it"
            )
        return row

    async def check(self, row: CheckpointRow) -> None:
        """Refuse a damaged checkpoint, as far as can be told without fetching it."""
        with self._folders.using(row.folder), _telling_damage(row):
            await self._folders.check(row.folder, row.digest or None)

    async def verified(self, row: CheckpointRow) -> Path:
        """The folder of a checkpoint, after every byte of it was checked."""
        with self._folders.using(row.folder):
            await self.check(row)
            return await self.folder(row)

    async def folder(self, row: CheckpointRow) -> Path:
        """A checkpoint's folder on this disk."""
        with _telling_damage(row):
            return await self._folders.here(row.folder)

    async def files(self, row: CheckpointRow) -> dict[str, manifest.FileRecord]:
        """A checkpoint's files by their relative names, the manifest excluded."""
        with _telling_damage(row):
            return dict((await self._folders.files(row.folder, row.digest or None)).files)

    async def file_link(self, row: CheckpointRow, name: str) -> str | None:
        """A link to one file directly in an object store, if it is in one."""
        with _telling_damage(row):
            return await at_store(self._folders.link, row.folder, name, LINK_LIFETIME_S)

    async def archive_link(self, row: CheckpointRow) -> str | None:
        """The same for all files in one archive."""
        with _telling_damage(row):
            return await self._folders.archive_link(row.folder, pack, LINK_LIFETIME_S)

    # ---- changing

    async def set_public(self, tenant: str, path: str, public: bool) -> None:
        """Publish or withdraw. Doing it twice changes nothing."""
        row = await self.owned(tenant, path)
        if row.public == public:
            return
        event = "checkpoint.publish" if public else "checkpoint.unpublish"

        def work(connection: Transaction) -> None:
            checkpoints.set_public(connection, path, public)
            self._audit(connection, row, event)

        await self._store.write(work)

    async def set_ttl(self, tenant: str, path: str, ttl_seconds: int | None) -> None:
        """Set a checkpoint to expire so many seconds from now, or never."""
        check_ttl(ttl_seconds)
        row = await self.owned(tenant, path)
        expires_at = None if ttl_seconds is None else self._clock.now() + ttl_seconds

        def work(connection: Transaction) -> None:
            checkpoints.set_expiry(connection, path, expires_at)
            self._audit(connection, row, "checkpoint.set_ttl", {"ttl_seconds": ttl_seconds})

        await self._store.write(work)

    async def delete(self, tenant: str, path: str, key: str | None = None) -> None:
        """Delete a checkpoint. Samplers made from it keep their weights while they live. The same
        `key` again is a repeated request: it has succeeded already."""
        try:
            row = await self.owned(tenant, path)
        except NotFound:
            if key and await self._was_deleted(tenant, path, key):
                return
            raise
        details = {"request": key} if key else {}
        await self._store.write(self._remove, row, "checkpoint.delete", details)

    async def _was_deleted(self, tenant: str, path: str, key: str) -> bool:
        since = self._clock.now() - REPEAT_S
        return await self._store.read(
            lambda connection: any(
                row.path == path and row.details.get("request") == key
                for row in audit.of_kind(connection, tenant, "checkpoint.delete", since)
            )
        )

    async def expire(self) -> int:
        """Delete every expired checkpoint; returns how many."""
        now = self._clock.now()

        def work(connection: Transaction) -> int:
            rows = checkpoints.expired(connection, now)
            for row in rows:
                self._remove(connection, row, "checkpoint.expire")
            return len(rows)

        if not await self._store.query(checkpoints.expired, now):
            return 0
        return await self._store.write(work)

    async def copy(
        self,
        tenant: str,
        source: CheckpointRow,
        project_id: str | None,
        ttl_seconds: int | None,
        key: str | None,
    ) -> str:
        """A copy of `source` that belongs to `tenant`; the same `key` again gives the same path. It
        is in a session and run of its own, in `project_id`."""
        check_ttl(ttl_seconds)
        now = self._clock.now()
        session = secrets.token_hex(16)
        row = replace(
            source,
            path=checkpoint_path(f"{session}:train:0", source.kind, source.name),
            model_id=f"{session}:train:0",
            session_id=session,
            tenant=tenant,
            created_at=now,
            public=False,
            project_id=project_id,
            expires_at=None if ttl_seconds is None else now + ttl_seconds,
        )

        def work(connection: Transaction) -> str:
            if key and (earlier := checkpoints.copied(connection, tenant, key)):
                return earlier
            copies.add_run(connection, row, source.path)
            self._store_row(connection, row, "checkpoint.copy", {"source": source.path})
            if key:
                checkpoints.remember_copy(connection, tenant, key, row.path)
            return row.path

        return await self._store.write(work)

    # ---- inside transactions

    def record(self, connection: Transaction, save: Save, row: CheckpointRow) -> None:
        """Store a sealed checkpoint, within the transaction that ends its operation."""
        _check_free(connection, save)
        session = sessions.get(connection, row.session_id)
        row = replace(row, project_id=None if session is None else session.project_id)
        self._store_row(connection, row, "checkpoint.create", {"size_bytes": row.size_bytes})

    def forget_run(self, connection: Transaction, model_id: str) -> None:
        """Forget all checkpoints of a run, within the transaction that forgets the run."""
        for row in checkpoints.of_run(connection, model_id):
            self._remove(connection, row, "checkpoint.delete", {"with": "its run"})

    def _store_row(
        self,
        connection: Transaction,
        row: CheckpointRow,
        event: str,
        details: Mapping[str, Any],
    ) -> None:
        usage.accrue_checkpoint(connection, row.path, row.created_at)
        checkpoints.put(connection, row)
        source = usage.Source(row.tenant, row.session_id, row.project_id or "", row.base_model)
        hour = usage.hour_of(row.created_at)
        usage.add(connection, usage.Use(hour, source, "checkpoint", 1))
        self._audit(connection, row, event, details)

    def _remove(
        self,
        connection: Transaction,
        row: CheckpointRow,
        event: str,
        details: Mapping[str, Any] | None = None,
    ) -> None:
        usage.accrue_checkpoint(connection, row.path, self._clock.now())
        if checkpoints.delete(connection, row.path):
            self._audit(connection, row, event, details)

    def _audit(
        self,
        connection: Transaction,
        row: CheckpointRow,
        event: str,
        details: Mapping[str, Any] | None = None,
    ) -> None:
        entry = audit.AuditRow(
            at=self._clock.now(),
            tenant=row.tenant,
            category="checkpoints",
            event=event,
            details=details or {},
            model_id=row.model_id,
            path=row.path,
        )
        audit.add(connection, entry)


def _finish(save: Save, draft: Path, saved: SaveResult) -> manifest.Manifest:
    """Complete what an engine wrote; blocks on the disk."""
    fill(draft, saved)
    _name_base_model(draft, save.run.base_model)
    if save.recipients:
        encryption.encrypt_folder(draft, save.recipients)
    return manifest.write(draft)


@contextmanager
def _telling_damage(row: CheckpointRow) -> Iterator[None]:
    """Tell whoever requested a checkpoint what is wrong with its files."""
    try:
        yield
    except (manifest.CorruptCheckpoint, NoSuchObject) as error:
        raise Refusal(f"checkpoint {row.path} is damaged: {error}") from error


def _readable(row: CheckpointRow, tenant: str, bearer: str | None) -> bool:
    return row.public or row.tenant in (tenant, bearer)


def _check_free(connection: Transaction, save: Save) -> None:
    if not save.overwrite and checkpoints.get(connection, save.path) is not None:
        raise TakenName(
            f"checkpoint {save.path} already exists: choose another name, delete it first"
            + (", or save with overwrite" if save.kind == "weights" else "")
        )


def _name_base_model(draft: Path, base_model: str) -> None:
    """Write the base model's public name into the adapter."""
    path = draft / "adapter_config.json"
    config = json.loads(path.read_text())
    path.write_text(json.dumps({**config, "base_model_name_or_path": base_model}, indent=2))
