"""Tokenizers for the models of a server: found, loaded and cached.

``get_tokenizer()`` of the clients ends here. A program that already uses ``transformers`` gets its
tokenizer class, as from the official SDK; any other gets the light ``Tokenizer``, made from
``tokenizer.json`` in a moment. Where files come from: see ``tokenizer_files``.
"""

from __future__ import annotations

import sys
import threading
from typing import TYPE_CHECKING, Any, Literal

from tinkex.client.errors import TokenizerError
from tinkex.client.tokenizer_files import PINNED_REVISIONS, TokenizerFiles
from tinkex.text.light_tokenizer import Tokenizer

if TYPE_CHECKING:
    from tinkex.client.session.holder import InternalClientHolder

CACHE_SIZE = 32
LLAMA_3_TOKENIZER = "thinkingmachineslabinc/meta-llama-3-instruct-tokenizer"

Kind = Literal["auto", "light", "transformers"]


def tokenizer_id_for(model_name: str, tokenizer_id: str | None = None) -> str:
    """Which tokenizer belongs to a model."""
    if tokenizer_id is not None:
        return tokenizer_id
    name = model_name.partition(":")[0]
    if name.startswith("meta-llama/Llama-3"):
        return LLAMA_3_TOKENIZER
    parts = name.split("/")
    return "/".join(parts[:2]) if len(parts) == 3 and not name.startswith("/") else name


_cache: dict[tuple[Any, ...], Any] = {}
_cache_lock = threading.Lock()


def tokenizer_for(
    model_name: str,
    tokenizer_id: str | None,
    holder: InternalClientHolder,
    kind: Kind = "auto",
) -> Any:
    """The tokenizer of a served model; ``TokenizerError`` names it and what was tried."""
    name = tokenizer_id_for(model_name, tokenizer_id)
    wanted = _wanted(kind)
    key = (name, model_name, holder.config.base_url, wanted)
    with _cache_lock:
        if key in _cache:
            return _cache[key]
    files = TokenizerFiles(holder.config, holder)
    loaded = _load(name, model_name, files, wanted)
    with _cache_lock:
        while len(_cache) >= CACHE_SIZE:
            _cache.pop(next(iter(_cache)))
        _cache[key] = loaded
    return loaded


def _wanted(kind: Kind) -> Kind:
    if kind == "auto":
        # Importing transformers takes seconds: only for programs that already did.
        return "transformers" if "transformers" in sys.modules else "light"
    return kind


def _load(name: str, model_name: str, files: TokenizerFiles, kind: Kind) -> Any:
    if name.startswith(("TML/", "thinkingmachines/")):
        raise TokenizerError(
            f"The tokenizer {name!r} needs a first-party package that is not public. "
            "Pass token ids, or load a tokenizer of your own."
        )
    if kind == "transformers" and name in PINNED_REVISIONS:
        return _transformers_from_hub(name, files)
    folder = files.folder(name, model_name)
    try:
        if kind == "transformers":
            return _transformers(str(folder))
        return Tokenizer(folder, name)
    except TokenizerError:
        raise
    except Exception as error:  # damaged files fail in many ways
        raise TokenizerError(
            f"The tokenizer {name!r} in {folder} cannot be read: {error}"
        ) from error


def _transformers(source: str, **options: Any) -> Any:
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(source, fast=True, **options)


def _transformers_from_hub(name: str, files: TokenizerFiles) -> Any:
    """Tokenizers with code of their own, at a revision somebody has read."""
    try:
        return _transformers(
            name,
            revision=PINNED_REVISIONS[name],
            trust_remote_code=True,
            local_files_only=files.offline,
        )
    except Exception as error:  # network, cache and remote code fail in many ways
        raise TokenizerError(f"The tokenizer {name!r} cannot be loaded: {error}") from error
