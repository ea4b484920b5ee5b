"""Tokenizers for the models of a server: found, loaded and cached.

``get_tokenizer()`` of the clients ends here. A program that already uses ``transformers`` gets its
tokenizer class, as from the official SDK; any other gets the light ``Tokenizer`` below, made from
``tokenizer.json``, with the methods such programs use. Where files come from: see
``tokenizer_files``.
"""

from __future__ import annotations

import json
import sys
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from tinkex.client.chat_template import render_chat
from tinkex.client.errors import TokenizerError
from tinkex.client.tokenizer_files import PINNED_REVISIONS, TokenizerFiles

if TYPE_CHECKING:
    from tinkex.client.holder import InternalClientHolder

CACHE_SIZE = 32
LLAMA_3_TOKENIZER = "thinkingmachineslabinc/meta-llama-3-instruct-tokenizer"

Kind = Literal["auto", "light", "transformers"]


class Tokenizer:
    """Text to token ids and back, from a folder with ``tokenizer.json``.

    Names and defaults follow ``transformers``, so code for its tokenizers runs on this one.
    """

    def __init__(self, folder: Path, name: str) -> None:
        from tokenizers import Tokenizer as Backend

        self.name_or_path = name
        self.folder = folder
        self._backend = Backend.from_file(str(folder / "tokenizer.json"))
        self._config = _read_json(folder / "tokenizer_config.json")
        self.chat_template: str | None = _chat_template(folder, self._config)

    def __repr__(self) -> str:
        return f"Tokenizer({self.name_or_path!r}, vocab_size={self.vocab_size})"

    def __len__(self) -> int:
        return int(self._backend.get_vocab_size(with_added_tokens=True))

    @property
    def vocab_size(self) -> int:
        return int(self._backend.get_vocab_size(with_added_tokens=False))

    # ---- text and ids

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        ids: list[int] = self._backend.encode(text, add_special_tokens=add_special_tokens).ids
        return ids

    def decode(self, token_ids: int | Sequence[int], skip_special_tokens: bool = False) -> str:
        ids = [token_ids] if isinstance(token_ids, int) else [int(token) for token in token_ids]
        text: str = self._backend.decode(ids, skip_special_tokens=skip_special_tokens)
        return text

    def batch_decode(
        self, sequences: Sequence[Sequence[int]], skip_special_tokens: bool = False
    ) -> list[str]:
        return [self.decode(ids, skip_special_tokens) for ids in sequences]

    def __call__(
        self, text: str | Sequence[str], add_special_tokens: bool = True
    ) -> dict[str, Any]:
        if isinstance(text, str):
            ids = self.encode(text, add_special_tokens)
            return {"input_ids": ids, "attention_mask": [1] * len(ids)}
        rows = [self.encode(item, add_special_tokens) for item in text]
        return {"input_ids": rows, "attention_mask": [[1] * len(row) for row in rows]}

    def convert_tokens_to_ids(self, tokens: str | Sequence[str]) -> Any:
        if isinstance(tokens, str):
            found = self._backend.token_to_id(tokens)
            return self.unk_token_id if found is None else found
        return [self.convert_tokens_to_ids(token) for token in tokens]

    def convert_ids_to_tokens(self, ids: int | Sequence[int]) -> Any:
        if isinstance(ids, int):
            return self._backend.id_to_token(ids)
        return [self._backend.id_to_token(int(token)) for token in ids]

    def get_vocab(self) -> dict[str, int]:
        return dict(self._backend.get_vocab(with_added_tokens=True))

    # ---- special tokens

    @property
    def special_tokens_map(self) -> dict[str, str]:
        names = ("bos_token", "eos_token", "pad_token", "unk_token")
        found = {name: self._special(name) for name in names}
        return {name: token for name, token in found.items() if token is not None}

    @property
    def all_special_ids(self) -> list[int]:
        added = self._backend.get_added_tokens_decoder()
        return [token_id for token_id, token in added.items() if token.special]

    @property
    def bos_token(self) -> str | None:
        return self._special("bos_token")

    @property
    def eos_token(self) -> str | None:
        return self._special("eos_token")

    @property
    def pad_token(self) -> str | None:
        return self._special("pad_token")

    @property
    def unk_token(self) -> str | None:
        return self._special("unk_token")

    @property
    def bos_token_id(self) -> int | None:
        return self._special_id("bos_token")

    @property
    def eos_token_id(self) -> int | None:
        return self._special_id("eos_token")

    @property
    def pad_token_id(self) -> int | None:
        return self._special_id("pad_token")

    @property
    def unk_token_id(self) -> int | None:
        return self._special_id("unk_token")

    def _special(self, name: str) -> str | None:
        value = self._config.get(name)
        return value["content"] if isinstance(value, dict) else value

    def _special_id(self, name: str) -> int | None:
        token = self._special(name)
        return None if token is None else self._backend.token_to_id(token)

    # ---- chat

    def apply_chat_template(
        self,
        conversation: Sequence[dict[str, Any]],
        *,
        tokenize: bool = True,
        add_generation_prompt: bool = False,
        chat_template: str | None = None,
        tools: Sequence[dict[str, Any]] | None = None,
        **variables: Any,
    ) -> Any:
        """Messages as the model was trained to read them: ids, or text with ``tokenize=False``."""
        template = chat_template or self.chat_template
        if template is None:
            raise TokenizerError(
                f"The tokenizer {self.name_or_path!r} has no chat template; pass chat_template=…"
            )
        text = render_chat(
            template,
            messages=list(conversation),
            add_generation_prompt=add_generation_prompt,
            tools=tools,
            **self.special_tokens_map,
            **variables,
        )
        return self.encode(text, add_special_tokens=False) if tokenize else text


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


def _chat_template(folder: Path, config: dict[str, Any]) -> str | None:
    file = folder / "chat_template.jinja"
    if file.is_file():
        return file.read_text(encoding="utf-8")
    template = config.get("chat_template")
    if isinstance(template, list):  # several named templates
        named = {item["name"]: item["template"] for item in template}
        return named.get("default")
    return template


def _read_json(path: Path) -> dict[str, Any]:
    if not path.is_file():
        return {}
    value = json.loads(path.read_text(encoding="utf-8"))
    return value if isinstance(value, dict) else {}
