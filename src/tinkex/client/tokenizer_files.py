"""Finding a tokenizer's files: a folder, our cache, the Hugging Face cache, the server, the hub.

In that order, so that what is on this machine is never asked for over a network. Downloads have
short time limits: without a network the answer is an error, not a wait.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import quote

from tinkex.client.api.call_policies import Purpose
from tinkex.client.errors import APIError, NotFoundError, TokenizerError
from tinkex.client.http import HttpRequest, TransportError
from tinkex.client.redaction import redact_text
from tinkex.client.settings.config import Config, hub_cache_directory, user_cache_directory
from tinkex.text.hub_cache import find_snapshot
from tinkex.text.model_files import TOKENIZER, TOKENIZER_SETTINGS
from tinkex.wire.routes import TOKENIZER as TOKENIZER_ROUTE

if TYPE_CHECKING:
    from tinkex.client.session.holder import InternalClientHolder

DOWNLOAD_TIMEOUT = 20.0

PINNED_REVISIONS = {
    "moonshotai/Kimi-K2-Thinking": "612681931a8c906ddb349f8ad0f582cb552189cd",
    "moonshotai/Kimi-K2.5": "4d01dfe0332d63057c186e0b262165819efb6611",
    "moonshotai/Kimi-K2.5-Text-Only": "4d01dfe0332d63057c186e0b262165819efb6611",
    "moonshotai/Kimi-K2.6": "b5aabbfb20227ed42becbf5541dbffd213942c58",
    "moonshotai/Kimi-K3": "f831ab66814297da540d832a5235f8e904f29d06",
}

_TOKENIZER_ROUTE = Purpose("tokenizer", inner=False, outer=False, timeout=DOWNLOAD_TIMEOUT)
_HUB_NAME = re.compile(r"[\w.-]+/[\w.-]+|[\w.-]+")

Fetch = Callable[[str], bytes | None]
"""The content of a file by its name, or None when the source has no such file."""


class TokenizerFiles:
    """The places one client looks in."""

    def __init__(self, config: Config, holder: InternalClientHolder) -> None:
        self._config = config
        self._holder = holder
        self._cache = (config.cache_directory or user_cache_directory()) / "tokenizers"

    @property
    def offline(self) -> bool:
        return self._config.offline

    def folder(self, name: str, model_name: str) -> Path:
        """A folder with the tokenizer's files; ``TokenizerError`` says where it was looked for."""
        tried: list[str] = []
        sources: tuple[Callable[[str, str, list[str]], Path | None], ...] = (
            self._given_folder,
            self._own_cache,
            self._hub_cache,
            self._from_server,
            self._from_hub,
        )
        for source in sources:
            if (folder := source(name, model_name, tried)) is not None:
                return folder
        raise TokenizerError(
            f"Failed to load tokenizer {name!r}. Tried: {'; '.join(tried)}. "
            "Check the name, put its files in a folder and use that path, or go online."
        )

    def _given_folder(self, name: str, model_name: str, tried: list[str]) -> Path | None:
        folder = Path(name)
        if (folder / TOKENIZER).is_file():
            return folder
        tried.append(f"folder {name}")
        return None

    def _own_cache(self, name: str, model_name: str, tried: list[str]) -> Path | None:
        for folder in (self._served_folder(model_name), self._hub_folder(name)):
            if (folder / TOKENIZER).is_file():
                return folder
        tried.append("our cache")
        return None

    def _hub_cache(self, name: str, model_name: str, tried: list[str]) -> Path | None:
        hub = hub_cache_directory()
        if folder := find_snapshot(name, hub, lambda path: (path / TOKENIZER).is_file()):
            return folder
        tried.append("Hugging Face cache")
        return None

    def _from_server(self, name: str, model_name: str, tried: list[str]) -> Path | None:
        try:
            there = self._served_files(model_name)

            def fetch(file: str) -> bytes | None:
                return self._served(model_name, f"/{file}") if file in there else None

            if (folder := _download(fetch, self._served_folder(model_name))) is not None:
                return folder
            tried.append("the server, which has none")
            return None
        except APIError as error:
            tried.append(f"the server ({type(error).__name__})")
            return None

    def _from_hub(self, name: str, model_name: str, tried: list[str]) -> Path | None:
        if self._config.offline or not _HUB_NAME.fullmatch(name):
            tried.append("not the hub: offline" if self._config.offline else "no hub name")
            return None
        revision = PINNED_REVISIONS.get(name, "main")

        def fetch(file: str) -> bytes | None:
            url = f"{self._config.hub_url}/{name}/resolve/{revision}/{file}"
            return self._holder.submit(_get(self._config, url)).result_here()

        try:
            if (folder := _download(fetch, self._hub_folder(name))) is not None:
                return folder
            tried.append("the hub, which has none")
            return None
        except (TransportError, TokenizerError) as error:
            tried.append(f"the hub ({redact_text(str(error))})")
            return None

    def _served(self, model_name: str, file: str = "") -> bytes | None:
        """A tokenizer file of the server, or the list of those it has."""
        path = TOKENIZER_ROUTE.format(model_name=quote(model_name, safe="/:")) + file
        request = self._holder.api.send("GET", path, _TOKENIZER_ROUTE)
        try:
            return self._holder.submit(request).result_here().content
        except NotFoundError:
            return None

    def _served_files(self, model_name: str) -> list[str]:
        try:
            return list(json.loads(self._served(model_name) or b"{}")["files"])
        except (ValueError, KeyError, TypeError):  # another server's answer to an unknown path
            return []

    def _served_folder(self, model_name: str) -> Path:
        server = hashlib.sha256(self._config.base_url.encode()).hexdigest()[:16]
        return self._cache / "served" / server / _safe(model_name)

    def _hub_folder(self, name: str) -> Path:
        return self._cache / "hub" / _safe(name)


async def _get(config: Config, url: str) -> bytes | None:
    from tinkex.client.transport.network import NetworkTransport

    transport = NetworkTransport(config)
    headers = {"Authorization": f"Bearer {config.hub_token}"} if config.hub_token else {}
    try:
        response = await transport.request(
            HttpRequest("GET", url, headers, timeout=DOWNLOAD_TIMEOUT)
        )
    finally:
        await transport.aclose()
    if response.status == 404:
        return None
    if response.status >= 400:
        raise TokenizerError(f"HTTP {response.status}")
    return response.content


def _download(fetch: Fetch, folder: Path) -> Path | None:
    """All files of a tokenizer into the cache; the required one last, so it marks a whole set."""
    required = fetch(TOKENIZER)
    if required is None:
        return None
    folder.mkdir(parents=True, exist_ok=True)
    for file in TOKENIZER_SETTINGS:
        if (content := fetch(file)) is not None:
            _write(folder / file, content)
    _write(folder / TOKENIZER, required)
    return folder


def _write(path: Path, content: bytes) -> None:
    descriptor, temporary = tempfile.mkstemp(dir=path.parent)
    with os.fdopen(descriptor, "wb") as file:
        file.write(content)
    Path(temporary).replace(path)


def _safe(name: str) -> str:
    return re.sub(r"[^\w.-]+", "--", name).strip(".") or "unnamed"
