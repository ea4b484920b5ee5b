"""Brings a checkpoint's files to this machine, by whichever way the server has.

External checkpoints have a signed URL for every file, on our server training checkpoints too. Other
servers export a training checkpoint to an external one first, which is deleted again. Sampler
checkpoints come as an archive, where the server serves any, as do training checkpoints that it
neither links nor exports.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tinkex.cli.errors import CliError
from tinkex.cli.line.context import CommandContext
from tinkex.cli.listings.checkpoint_path import check_path
from tinkex.cli.transfer.archive import unpack
from tinkex.cli.transfer.files import fetch_files
from tinkex.cli.transfer.manifest import check_manifest
from tinkex.cli.transfer.parts import DownloadCut
from tinkex.cli.transfer.staging import Staging
from tinkex.types.tinker_path import EXTERNAL_WEIGHTS, SAMPLER_WEIGHTS

if TYPE_CHECKING:
    from tinkex.types import ExternalWeightsUrlsResponse

_RENEW_BEFORE = timedelta(minutes=5)
_EXPORT_SECONDS = 3600
_NOT_OFFERED = (404, 405, 501)
_ARCHIVE = "archive"


def fetch_checkpoint(context: CommandContext, path: str, target: Path) -> int:
    """Downloads the checkpoint at `path` into `target`, whole or not at all; returns its size.

    What was there before stays until the new files are complete.
    """
    staging = Staging(target)
    try:
        with _kept_after_a_cut(staging):
            size = _ways(context, path)(staging)
            check_manifest(staging.files)
            staging.commit()
            return size
    except TimeoutError:  # of a request; it is an OSError too, but not about our files
        raise
    except OSError as error:
        raise CliError(f"Failed to write {target}", f"Details: {error}") from error


@contextmanager
def _kept_after_a_cut(staging: Staging) -> Iterator[None]:
    """A download that can continue stays; one that was stopped or is wrong goes."""
    staging.open()
    try:
        yield
    except (DownloadCut, TimeoutError):
        staging.discard_if_empty()
        raise
    except BaseException:
        staging.discard()
        raise


def _ways(context: CommandContext, path: str) -> Callable[[Staging], int]:
    kind = check_path(path).kind
    if kind == EXTERNAL_WEIGHTS:
        ask = context.rest.get_external_weights_urls
        return lambda staging: _by_files(context, _Links(context, path, ask), staging)
    if kind == SAMPLER_WEIGHTS:
        return lambda staging: _by_archive(context, path, staging, _sampler_refusal(path))
    return lambda staging: _by_links_or_export(context, path, staging)


def _by_files(context: CommandContext, links: _Links, staging: Staging) -> int:
    names = links.names()
    with context.bar("Downloading", None, "bytes") as bar:
        return fetch_files(
            context.source,
            names,
            links.get,
            staging.files,
            bar,
            staging.tags(),
            context.deadline,
        )


def _by_links_or_export(context: CommandContext, path: str, staging: Staging) -> int:
    """Links need no run on the server, so nothing is left of it there."""
    ask = getattr(context.rest, "get_adapter_urls", None)
    if ask is None:
        return _by_export(context, path, staging)
    try:
        links = _Links(context, path, ask)
    except Exception as error:
        if getattr(error, "status_code", None) not in _NOT_OFFERED:
            raise
        return _by_export(context, path, staging)
    return _by_files(context, links, staging)


def _by_export(context: CommandContext, path: str, staging: Staging) -> int:
    context.narrate("Exporting the checkpoint: this starts a training session on the server...")
    said = {"created_by": "tinkex checkpoint download"}
    try:
        client = context.within(
            lambda: context.service.create_training_client_from_state(path, user_metadata=said)
        )
        saved = client.save_weights_external("download", ttl_seconds=_EXPORT_SECONDS)
        exported = context.wait(saved).path
    except Exception as error:
        if getattr(error, "status_code", None) not in _NOT_OFFERED:
            raise
        return _by_archive(context, path, staging, error)
    try:
        links = _Links(context, exported, context.rest.get_external_weights_urls)
        return _by_files(context, links, staging)
    finally:
        _delete_export(context, exported)


def _delete_export(context: CommandContext, exported: str) -> None:
    try:
        context.wait(context.rest.delete_checkpoint_from_tinker_path(exported))
    except Exception as error:
        context.note(f"Warning: could not delete the temporary export {exported}: {error}")


def _by_archive(context: CommandContext, path: str, staging: Staging, otherwise: Exception) -> int:
    """Downloads and unpacks an archive; raises `otherwise` where the server serves none."""
    ask = getattr(context.rest, "get_checkpoint_archive_url_from_tinker_path", None)
    if ask is None:
        raise otherwise

    def link(_name: str, _renew: bool) -> str:
        url: str = context.wait(ask(path)).url
        return url

    try:
        first = link(_ARCHIVE, False)
    except Exception as error:
        if getattr(error, "status_code", None) not in _NOT_OFFERED:
            raise
        raise otherwise from error
    _fetch_archive(context, staging, lambda name, renew: link(name, renew) if renew else first)
    with context.bar("Extracting archive", None, "files") as bar:
        return unpack(staging.archive, staging.files, bar)


def _fetch_archive(
    context: CommandContext, staging: Staging, link: Callable[[str, bool], str]
) -> None:
    names, tags = [staging.archive.name], staging.tags()
    with context.bar("Downloading archive", None, "bytes") as bar:
        fetch_files(context.source, names, link, staging.folder, bar, tags, context.deadline)


class _Links:
    """The signed URLs of a checkpoint's files, signed anew shortly before they expire."""

    def __init__(self, context: CommandContext, path: str, request: Callable[[str], Any]) -> None:
        self._context = context
        self._path = path
        self._request = request
        self._current = self._ask()

    def names(self) -> list[str]:
        if not self._current.urls:
            raise CliError(f"The checkpoint has no files: {self._path}")
        return sorted(self._current.urls)

    def get(self, name: str, renew: bool) -> str:
        expires = self._current.expires
        expires = expires if expires.tzinfo else expires.replace(tzinfo=UTC)
        if renew or datetime.now(UTC) > expires - _RENEW_BEFORE:
            self._current = self._ask()
        return self._current.urls[name]

    def _ask(self) -> ExternalWeightsUrlsResponse:
        answer: ExternalWeightsUrlsResponse = self._context.wait(self._request(self._path))
        return answer


def _sampler_refusal(path: str) -> CliError:
    return CliError(
        f"Sampler checkpoints cannot be downloaded: {path}",
        "This server serves training and external checkpoints only.",
        "Save with save_state() or save_weights_external(), then download that checkpoint.",
    )
