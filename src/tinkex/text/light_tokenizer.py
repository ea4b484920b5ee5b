"""A tokenizer from ``tokenizer.json`` alone, with the names and defaults of ``transformers``.

What most programs ask of a tokenizer is answered here, without importing ``transformers``, which
takes seconds. Anything else (tensors, padding, truncation, methods this class does not have) is
handed to the ``transformers`` tokenizer of the same folder, loaded when first needed; where that
package is missing, the error says so. Where a client finds folders: see ``client/tokenizer_files``.

Our own because importing ``transformers`` for a tokenizer takes 5.7 s of processor time, this
module with ``tokenizers`` 0.06 s.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, overload

from tinkex.text.chat_template import render_chat
from tinkex.text.errors import TokenizerError
from tinkex.text.template_files import DEFAULT, WITH_TOOLS, read_templates

_SPECIAL_TOKENS = ("bos_token", "eos_token", "pad_token", "unk_token")
_NAMED_TOKENS = (*_SPECIAL_TOKENS, "sep_token", "cls_token", "mask_token")
_MORE_TOKENS = ("extra_special_tokens", "additional_special_tokens")


class Encoding(dict[str, Any]):
    """``input_ids`` and ``attention_mask``, as items and as attributes."""

    def __getattr__(self, name: str) -> Any:
        try:
            return self[name]
        except KeyError:
            raise AttributeError(name) from None


class _SpecialToken:
    """One special token: read from the folder's settings, and changeable by the program."""

    def __set_name__(self, owner: type, name: str) -> None:
        self._name = name

    @overload
    def __get__(self, owner: None, kind: type) -> _SpecialToken: ...
    @overload
    def __get__(self, owner: Tokenizer, kind: type) -> str | None: ...
    def __get__(self, owner: Tokenizer | None, kind: type) -> str | _SpecialToken | None:
        if owner is None:
            return self
        return _content(owner._config.get(self._name))

    def __set__(self, owner: Tokenizer, value: str | None) -> None:
        owner._config[self._name] = value
        if owner._full is not None:
            setattr(owner._full, self._name, value)


class Tokenizer:
    """Text to token ids and back, from a folder with ``tokenizer.json``.

    Code for the tokenizers of ``transformers`` runs on this one.
    """

    bos_token = _SpecialToken()
    eos_token = _SpecialToken()
    pad_token = _SpecialToken()
    unk_token = _SpecialToken()

    chat_template: str | None
    _templates: dict[str, str]

    def __init__(self, folder: Path, name: str) -> None:
        from tokenizers import Tokenizer as Backend

        config = _read_config(folder)
        templates = read_templates(folder, config)
        backend = Backend.from_file(str(folder / "tokenizer.json"))
        # What the file says of them is how its last user cut and filled up texts.
        backend.no_truncation()
        backend.no_padding()
        self.__dict__.update(
            name_or_path=name,
            folder=folder,
            chat_template=templates.get(DEFAULT),
            _templates=templates,
            _backend=backend,
            _config=config,
            _full=None,
        )

    def __repr__(self) -> str:
        return f"Tokenizer({self.name_or_path!r}, vocab_size={self.vocab_size})"

    def __len__(self) -> int:
        return int(self._backend.get_vocab_size(with_added_tokens=True))

    @property
    def vocab_size(self) -> int:
        return int(self._backend.get_vocab_size(with_added_tokens=False))

    # ---- what this class leaves to transformers

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):  # also what copying and pickling ask for
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
        try:
            full = self._complete(name)
        except TokenizerError as error:
            raise AttributeError(str(error)) from None
        return getattr(full, name)

    def __setattr__(self, name: str, value: Any) -> None:
        if name not in self.__dict__ and not hasattr(type(self), name):
            setattr(self._complete(name), name, value)
        else:
            object.__setattr__(self, name, value)

    def _complete(self, wanted: str) -> Any:
        """The ``transformers`` tokenizer of the same folder, with the changes made to this one."""
        if self._full is None:
            try:
                from transformers import AutoTokenizer
            except ImportError:
                raise TokenizerError(
                    f"The light tokenizer of {self.name_or_path!r} does not offer this use of "
                    f"{wanted!r}; the one of transformers does: pip install transformers"
                ) from None
            full = AutoTokenizer.from_pretrained(str(self.folder))
            for name in _SPECIAL_TOKENS:
                if getattr(full, name) != getattr(self, name):
                    setattr(full, name, getattr(self, name))
            if self.chat_template != self._templates.get(DEFAULT):
                full.chat_template = self.chat_template
            self.__dict__["_full"] = full
        return self._full

    # ---- text and ids

    def encode(
        self,
        text: str,
        text_pair: str | None = None,
        add_special_tokens: bool = True,
        **options: Any,
    ) -> Any:
        if text_pair is not None or options or not isinstance(text, str):
            full = self._complete("encode")
            return full.encode(text, text_pair, add_special_tokens=add_special_tokens, **options)
        return self._backend.encode(text, add_special_tokens=add_special_tokens).ids

    def decode(
        self,
        token_ids: Any,
        skip_special_tokens: bool = False,
        clean_up_tokenization_spaces: bool | None = None,
        **options: Any,
    ) -> Any:
        tidy = clean_up_tokenization_spaces
        if options:
            options = {"clean_up_tokenization_spaces": tidy, **options}
            full = self._complete("decode")
            return full.decode(token_ids, skip_special_tokens=skip_special_tokens, **options)
        ids = _plain(token_ids)
        ids = [ids] if isinstance(ids, int) else ids
        if ids and isinstance(ids[0], list):
            return self.batch_decode(ids, skip_special_tokens, clean_up_tokenization_spaces=tidy)
        text: str = self._backend.decode(ids, skip_special_tokens=skip_special_tokens)
        tidy = self._config.get("clean_up_tokenization_spaces") if tidy is None else tidy
        return _tidied(text) if tidy else text

    def batch_decode(
        self, sequences: Any, skip_special_tokens: bool = False, **options: Any
    ) -> list[str]:
        return [self.decode(ids, skip_special_tokens, **options) for ids in sequences]

    def __call__(
        self, text: str | Sequence[str], *pair: Any, add_special_tokens: bool = True, **options: Any
    ) -> Any:
        if pair or options:
            full = self._complete("__call__")
            return full(text, *pair, add_special_tokens=add_special_tokens, **options)
        if isinstance(text, str):
            ids = self.encode(text, add_special_tokens=add_special_tokens)
            return Encoding(input_ids=ids, attention_mask=[1] * len(ids))
        rows = [self.encode(item, add_special_tokens=add_special_tokens) for item in text]
        return Encoding(input_ids=rows, attention_mask=[[1] * len(row) for row in rows])

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
        found = {name: getattr(self, name) for name in _SPECIAL_TOKENS}
        return {name: token for name, token in found.items() if token is not None}

    @property
    def all_special_ids(self) -> list[int]:
        more = [token for key in _MORE_TOKENS for token in _listed(self._config.get(key))]
        named = [self._config.get(name) for name in _NAMED_TOKENS]
        ids = [self._id(_content(token)) for token in (*named, *more)]
        return list(dict.fromkeys(found for found in ids if found is not None))

    @property
    def bos_token_id(self) -> int | None:
        return self._id(self.bos_token)

    @property
    def eos_token_id(self) -> int | None:
        return self._id(self.eos_token)

    @property
    def pad_token_id(self) -> int | None:
        return self._id(self.pad_token)

    @pad_token_id.setter
    def pad_token_id(self, token_id: int | None) -> None:
        self.pad_token = None if token_id is None else self._backend.id_to_token(token_id)

    @property
    def unk_token_id(self) -> int | None:
        return self._id(self.unk_token)

    def _id(self, token: str | None) -> int | None:
        return None if token is None else self._backend.token_to_id(token)

    # ---- chat

    def apply_chat_template(
        self,
        conversation: Sequence[Any],
        tools: Sequence[Any] | None = None,
        documents: Sequence[Any] | None = None,
        chat_template: str | None = None,
        add_generation_prompt: bool = False,
        continue_final_message: bool = False,
        tokenize: bool = True,
        padding: Any = False,
        truncation: bool = False,
        max_length: int | None = None,
        return_tensors: Any = None,
        return_dict: bool = True,
        return_assistant_tokens_mask: bool = False,
        tokenizer_kwargs: dict[str, Any] | None = None,
        **variables: Any,
    ) -> Any:
        """Messages as the model was trained to read them, with the parameters, the order and the
        defaults of ``transformers`` 5: a dictionary with ``input_ids``, a list of ids with
        ``return_dict=False``, or text with ``tokenize=False``."""
        for_transformers = {
            "documents": documents,
            "continue_final_message": continue_final_message,
            "padding": padding,
            "truncation": truncation,
            "max_length": max_length,
            "return_tensors": return_tensors,
            "return_assistant_tokens_mask": return_assistant_tokens_mask,
            "tokenizer_kwargs": tokenizer_kwargs,
        }
        functions = any(callable(tool) for tool in tools or ())
        if functions or any(for_transformers.values()) or _is_batch(conversation):
            return self._complete("apply_chat_template").apply_chat_template(
                conversation,
                tools=tools,
                chat_template=chat_template,
                add_generation_prompt=add_generation_prompt,
                tokenize=tokenize,
                return_dict=return_dict,
                **for_transformers,
                **variables,
            )
        text = self._rendered(chat_template, conversation, tools, add_generation_prompt, variables)
        if not tokenize:
            return text
        encoded = self(text, add_special_tokens=False)
        return encoded if return_dict else encoded["input_ids"]

    def template_for(self, tools: Sequence[Any] | None, asked: str | None = None) -> str | None:
        """The template that is `asked` for, by its name or as it is; else the model's own, which
        may be another one where there are tools, if only an empty list of them."""
        if asked is not None:
            return self._templates.get(asked, asked)
        default = self._templates.get(DEFAULT)
        if tools is not None and self.chat_template == default:
            return self._templates.get(WITH_TOOLS, default)
        return self.chat_template

    def _rendered(
        self,
        chat_template: str | None,
        conversation: Sequence[Any],
        tools: Sequence[Any] | None,
        add_generation_prompt: bool,
        variables: dict[str, Any],
    ) -> str:
        template = self.template_for(tools, chat_template)
        if template is None:
            raise TokenizerError(
                f"The tokenizer {self.name_or_path!r} has no chat template; pass chat_template=…"
            )
        return render_chat(
            template,
            messages=list(conversation),
            add_generation_prompt=add_generation_prompt,
            tools=tools,
            **{**self.special_tokens_map, **variables},
        )


def _plain(value: Any) -> Any:
    """Ids, or rows of ids, as Python's own numbers and lists, whatever array they came in."""
    if hasattr(value, "tolist"):
        return value.tolist()
    if isinstance(value, list | tuple):
        return [item if type(item) is int else _plain(item) for item in value]
    return int(value)


def _is_batch(conversation: Sequence[Any]) -> bool:
    return bool(conversation) and not isinstance(conversation[0], dict)


def _content(token: Any) -> str | None:
    """A special token's text, however the settings write it."""
    text: str | None = token["content"] if isinstance(token, dict) else token
    return text


def _listed(tokens: Any) -> list[Any]:
    return list(tokens.values()) if isinstance(tokens, dict) else list(tokens or ())


def _tidied(text: str) -> str:
    """Without the spaces before English marks and endings that some settings ask to take out."""
    for mark in (".", "?", "!", ","):
        text = text.replace(f" {mark}", mark)
    text = text.replace(" ' ", "'")
    for ending in ("n't", "'m", "'s", "'ve", "'re"):
        text = text.replace(f" {ending}", ending)
    return text


def _read_config(folder: Path) -> dict[str, Any]:
    """The settings; older folders have the special tokens in a file of their own."""
    config = _read_json(folder / "tokenizer_config.json")
    if "added_tokens_decoder" in config:
        return config
    return {**config, **_read_json(folder / "special_tokens_map.json")}


def _read_json(path: Path) -> dict[str, Any]:
    if not path.is_file():
        return {}
    value = json.loads(path.read_text(encoding="utf-8"))
    return value if isinstance(value, dict) else {}
