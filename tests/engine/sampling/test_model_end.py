"""A sample that names no stop ends where the model's folder says that its texts end."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tinkex.engine.builtin.tiny_tokenizer import (
    EOS_ID,
    PAD_ID,
    PLAIN_TEMPLATE,
    build_tokenizer,
    write_tokenizer,
)
from tinkex.engine.errors import ModelError
from tinkex.engine.sampling.model_end import read_ending

SAID: dict[str, tuple[dict[str, Any], tuple[int, ...]]] = {
    "first of all in what is said of generation": (
        {"generation_config.json": {"eos_token_id": [7, 8]}, "config.json": {"eos_token_id": 9}},
        (7, 8),
    ),
    "else in the configuration": (
        {"generation_config.json": {"do_sample": True}, "config.json": {"eos_token_id": 9}},
        (9,),
    ),
    "else in that of a text model beside a tower": (
        {"config.json": {"text_config": {"eos_token_id": PAD_ID}, "vision_config": {}}},
        (PAD_ID,),
    ),
    "else in the tokenizer's settings": ({"config.json": {"text_config": None}}, (EOS_ID,)),
}


@pytest.mark.parametrize("where", SAID)
def test_the_end_of_text_is_found(tmp_path: Path, where: str) -> None:
    files, expected = SAID[where]
    write_tokenizer(tmp_path, template=PLAIN_TEMPLATE, max_length=64)
    for name, said in files.items():
        (tmp_path / name).write_text(json.dumps(said))
    assert read_ending(tmp_path).eos == expected


def test_a_folder_that_says_nothing_of_it_has_no_end(tmp_path: Path) -> None:
    assert read_ending(tmp_path).eos == ()


def test_the_tokenizer_neither_cuts_nor_fills_up_as_its_last_user_did(tmp_path: Path) -> None:
    saved = build_tokenizer()
    saved.enable_truncation(2)
    saved.enable_padding(length=8)
    saved.save(str(tmp_path / "tokenizer.json"))
    tokenizer = read_ending(tmp_path).tokenizer
    assert tokenizer is not None
    assert tokenizer.encode("four").ids == list(b"four")


@pytest.mark.parametrize("text", ["{", "[]", '{"eos_token_id": "x"}'])
def test_a_file_that_cannot_be_read_is_named(tmp_path: Path, text: str) -> None:
    (tmp_path / "config.json").write_text(text)
    with pytest.raises(ModelError, match=r"config\.json"):
        read_ending(tmp_path)
