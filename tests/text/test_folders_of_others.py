"""A folder's tokenizer and chat templates are read as transformers reads them, however saved."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tinkex.engine.builtin import tiny_tokenizer
from tinkex.text.light_tokenizer import Tokenizer
from tinkex.text.model_text import ModelText

END = "<|im_end|>"
TEXT = "Hello , it 's all we know . "
MESSAGES = [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "yo"}]
TOOL = {"type": "function", "function": {"name": "add", "parameters": {"type": "object"}}}

PLAIN = "{% for m in messages %}{{ m.content }}{% endfor %}"
WITH_TOOLS = PLAIN + "{{ tools | tojson }}"
MARKED = (
    "{% for m in messages %}<|im_start|>\n{% generation %}{% set said = m.content %}{{ said }}"
    "{% endgeneration %}\n{{ said is defined }}{% endfor %}"
)
ASKED = (
    "{{ {'b': [1, 2], 'a': 'é<'} | tojson(separators=(',', ':'), sort_keys=True) }}"
    "{{ 'é' | tojson(ensure_ascii=True) }}{{ [1] | tojson(indent=1) }}{{ documents is none }}"
)
NAMED = [{"name": "default", "template": PLAIN}, {"name": "tool_use", "template": WITH_TOOLS}]
CUT = {"direction": "Right", "max_length": 8, "strategy": "LongestFirst", "stride": 0}
FILLED = {
    "strategy": {"Fixed": 64}, "direction": "Right", "pad_to_multiple_of": None, "pad_id": 0,
    "pad_type_id": 0, "pad_token": "<|endoftext|>",
}  # fmt: skip


def _settings(**values: Any) -> Callable[[Path], None]:
    def change(folder: Path) -> None:
        _update(folder / "tokenizer_config.json", values)

    return change


def _saved(**values: Any) -> Callable[[Path], None]:
    return lambda folder: _update(folder / "tokenizer.json", values)


def _template_files(folder: Path) -> None:
    (folder / "chat_template.jinja").write_text(PLAIN)
    (folder / "additional_chat_templates").mkdir()
    (folder / "additional_chat_templates" / "tool_use.jinja").write_text(WITH_TOOLS)


def _special_tokens_apart(folder: Path) -> None:
    """As older versions of transformers wrote it."""
    _update(folder / "tokenizer_config.json", {"eos_token": None, "pad_token": None})
    tokens = {"eos_token": END, "bos_token": {"content": "<|im_start|>", "normalized": False}}
    (folder / "special_tokens_map.json").write_text(json.dumps(tokens))


def _update(file: Path, values: dict[str, Any]) -> None:
    kept = {**json.loads(file.read_text()), **values}
    file.write_text(json.dumps({key: value for key, value in kept.items() if value is not None}))


FOLDERS: dict[str, Callable[[Path], None]] = {
    "as it is": _settings(),
    "whose last user cut texts": _saved(truncation=CUT),
    "whose last user filled texts up": _saved(padding=FILLED),
    "with marks for training": _settings(chat_template=MARKED),
    "with settings of JSON": _settings(chat_template=ASKED),
    "with a template for tools": _settings(chat_template=NAMED),
    "with templates in files": _template_files,
    "with special tokens in a file of their own": _special_tokens_apart,
    "that takes spaces out": _settings(clean_up_tokenization_spaces=True),
    "with more special tokens": _settings(additional_special_tokens=["<|im_start|>"]),
}


def add(a: int) -> int:
    """
    Adds.

    Args:
        a: a number
    """
    return a


USES: dict[str, Callable[[Any], Any]] = {
    "ids": lambda t: t.encode(TEXT),
    "ids of several": lambda t: [list(ids) for ids in t([TEXT, "a"])["input_ids"]],
    "text": lambda t: t.decode(t.encode(TEXT)),
    "text as it is": lambda t: t.decode(t.encode(TEXT), clean_up_tokenization_spaces=False),
    "text tidied": lambda t: t.batch_decode([t.encode(TEXT)], clean_up_tokenization_spaces=True),
    "special tokens": lambda t: (t.special_tokens_map, t.all_special_ids, t.eos_token_id),
    "a chat": lambda t: t.apply_chat_template(MESSAGES, tokenize=False),
    "a chat's ids": lambda t: list(t.apply_chat_template(MESSAGES, return_dict=False)),
    "tools": lambda t: t.apply_chat_template(MESSAGES, tools=[TOOL], tokenize=False),
    "functions": lambda t: t.apply_chat_template(MESSAGES, tools=[add], tokenize=False),
    "tools, to be continued": lambda t: t.apply_chat_template(
        MESSAGES, tools=[TOOL], tokenize=False, continue_final_message=True
    ),
}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    made = tmp_path / "model"
    made.mkdir()
    tiny_tokenizer.write_tokenizer(made, template=tiny_tokenizer.PLAIN_TEMPLATE, max_length=4096)
    return made


@pytest.mark.parametrize("kind", FOLDERS)
def test_the_light_tokenizer_reads_a_folder_as_transformers_does(folder: Path, kind: str) -> None:
    FOLDERS[kind](folder)
    theirs, ours = _theirs(folder), Tokenizer(folder, "t")
    for use, asked in USES.items():
        assert _outcome(asked, ours) == _outcome(asked, theirs), use


@pytest.mark.parametrize("kind", FOLDERS)
def test_a_server_reads_a_folder_as_transformers_does(folder: Path, kind: str) -> None:
    FOLDERS[kind](folder)
    theirs, ours = _theirs(folder), ModelText(folder, "m")
    for text in (TEXT, TEXT * 400):
        assert ours.encode(text) == theirs.encode(text)
    chat: Any = {"add_generation_prompt": True, "return_dict": False}
    assert ours.chat(MESSAGES, []).tokens == theirs.apply_chat_template(MESSAGES, **chat)
    if "tools" in kind or "files" in kind:
        expected = theirs.apply_chat_template(MESSAGES, tools=[TOOL], **chat)
        assert ours.chat(MESSAGES, [TOOL]).tokens == expected


def test_a_template_that_a_program_sets_counts_with_tools_too(folder: Path) -> None:
    FOLDERS["with a template for tools"](folder)
    ours = Tokenizer(folder, "t")
    ours.chat_template = "mine"
    assert ours.apply_chat_template(MESSAGES, tools=[TOOL], tokenize=False) == "mine"
    by_name = ours.apply_chat_template(MESSAGES, chat_template="tool_use", tokenize=False)
    assert by_name == "hiyonull"


def _theirs(folder: Path) -> Any:
    copy = shutil.copytree(folder, folder.parent / "theirs")
    return pytest.importorskip("transformers").AutoTokenizer.from_pretrained(str(copy))


def _outcome(asked: Callable[[Any], Any], tokenizer: Any) -> Any:
    """What it answers, or only that it refuses: which words are for either to choose."""
    try:
        return asked(tokenizer)
    except Exception:
        return "refused"
