"""Reasoning, content and tool calls of every chat format, however the text is cut."""

from __future__ import annotations

import itertools
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tinkex.text.formats.chosen import Format, format_of, parser
from tinkex.text.formats.pieces import Arguments, Call, Content, Piece, Reasoning

TOOLS: dict[str, dict[str, Any]] = {
    "add": {"properties": {"a": {"type": "integer"}, "s": {"type": "string"}}},
    "now": {"properties": {}},
}
ADD = {"a": 1, "s": '2 {"}<'}
HERMES = f'<tool_call>\n{{"name": "add", "arguments": {json.dumps(ADD)}}}\n</tool_call>'
XML = (
    "<tool_call>\n<function=add>\n<parameter=a>\n1\n</parameter>\n"
    '<parameter=s>\n2 {"}<\n</parameter>\n</function>\n</tool_call>'
)
NOW = '<tool_call>\n{"name": "now", "arguments": {}}\n</tool_call>'
LLAMA = f'{{"name": "add", "parameters": {json.dumps(ADD)}}}'
OSS = (
    "<|channel|>analysis<|message|>hm\n<|end|><|start|>assistant<|channel|>commentary"
    f" to=functions.add <|constrain|>json<|message|>{json.dumps(ADD)}<|call|>"
)
ONE = [("add", ADD)]

CASES: list[tuple[Format, str, str, str, list[tuple[str, Any]]]] = [
    ("hermes", "<think>\nhm\n</think>\n\nI add.\n" + HERMES, "hm", "I add.", ONE),
    ("hermes", HERMES + "\n" + NOW, "", "", [*ONE, ("now", {})]),
    ("hermes", "just <tool_ text", "", "just <tool_ text", []),
    ("hermes", "1 < 2\n\n", "", "1 < 2\n\n", []),
    ("hermes", "<tool_call>\nnot JSON\n</tool_call>", "", None, []),
    (
        "hermes",
        '<tool_call>{"arguments": {"a": 1}, "name": "add"}</tool_call>',
        "",
        "",
        [("add", {"a": 1})],
    ),
    (
        "hermes",
        '<tool_call>{"name": "add", "arguments": "{\\"a\\": 1}"}</tool_call>',
        "",
        "",
        [("add", {"a": 1})],
    ),
    ("qwen_xml", "<think>\nhm\n</think>\n\n" + XML, "hm", "", ONE),
    (
        "qwen_xml",
        "text\n<tool_call>\n<function=now>\n</function>\n</tool_call>",
        "",
        "text",
        [("now", {})],
    ),
    ("llama3_json", LLAMA, "", "", ONE),
    ("llama3_json", "<|python_tag|>" + LLAMA, "", "", ONE),
    ("llama3_json", "I say {this}", "", "I say {this}", []),
    ("llama3_json", '{"a": "JSON, but no call"}', "", '{"a": "JSON, but no call"}', []),
    ("gpt_oss", OSS, "hm\n", "", ONE),
    ("gpt_oss", "<|channel|>final<|message|>Hi.<|return|>", "", "Hi.", []),
]


WORDS = [
    *("<think>", "</think>", "<tool_call>", "</tool_call>", "<function=add>", "</function>", "<"),
    *("<parameter=a>", "</parameter>", '{"name": "add", "arguments": {', "}", "\n", "x"),
    *("<|channel|>", "analysis", "<|message|>", "<|end|>", " to=functions.add"),
]


def sorted_out(pieces: list[Piece]) -> tuple[str, str, list[tuple[str, str]]]:
    reasoning = "".join(piece.text for piece in pieces if isinstance(piece, Reasoning))
    content = "".join(piece.text for piece in pieces if isinstance(piece, Content))
    calls: list[tuple[str, str]] = []
    for piece in pieces:
        if isinstance(piece, Call):
            calls.append((piece.name, ""))
        elif isinstance(piece, Arguments):
            calls[-1] = calls[-1][0], calls[-1][1] + piece.text
    return reasoning, content, calls


def parsed(name: Format, parts: list[str], thinking: bool = False) -> tuple[str, str, Any]:
    reader = parser(name, TOOLS, thinking=thinking)
    return sorted_out([*(piece for part in parts for piece in reader.add(part)), *reader.end()])


@pytest.mark.parametrize(("name", "text", "reasoning", "content", "calls"), CASES)
def test_an_answer_is_told_apart_however_it_is_cut(
    name: Format, text: str, reasoning: str, content: str | None, calls: list[tuple[str, Any]]
) -> None:
    for parts in ([text], list(text), [text[i : i + 3] for i in range(0, len(text), 3)]):
        found = parsed(name, parts)
        assert found[0] == reasoning
        assert found[1] == (text if content is None else content)
        assert [(call, json.loads(given)) for call, given in found[2]] == calls


@given(
    st.sampled_from(["hermes", "qwen_xml", "llama3_json", "gpt_oss"]),
    st.lists(
        st.sampled_from(WORDS),
        max_size=14,
    ),
    st.data(),
)
def test_whatever_a_model_writes_parses_and_its_cuts_change_nothing(
    name: Format, words: list[str], data: st.DataObject
) -> None:
    text = "".join(words)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(text)), max_size=6)))
    parts = [text[a:b] for a, b in itertools.pairwise([0, *cuts, len(text)])]
    whole = parsed(name, [text])
    assert parsed(name, parts) == whole


def test_a_call_is_told_while_it_is_written() -> None:
    reader = parser("hermes", TOOLS, thinking=False)
    assert reader.add('<tool_call>\n{"name": "add", "arguments": {"a"') == [
        Call("add"),
        Arguments('{"a"'),
    ]
    assert reader.add(": 1}") == [Arguments(": 1}")]
    assert [*reader.add("}\n</tool_call>"), *reader.end()] == []


def test_a_prompt_that_opened_the_tag_is_answered_with_reasoning_first() -> None:
    assert parsed("hermes", ["hm\n</think>\n\nHi"], thinking=True) == ("hm", "Hi", [])


@pytest.mark.parametrize(
    ("template", "name"),
    [
        ("{{ '<tool_call>' }}", "hermes"),
        ("{{ '<tool_call><function=' }}", "qwen_xml"),
        ("{{ '<|python_tag|>' }}", "llama3_json"),
        ("{{ '<|channel|>' }}", "gpt_oss"),
        (None, "hermes"),
    ],
)
def test_the_format_is_chosen_by_the_template(template: str | None, name: Format) -> None:
    assert format_of(template) == name


def test_a_tools_schema_that_is_none_does_not_break_the_reading_of_its_calls() -> None:
    reader = parser("qwen_xml", {"add": {"properties": ["a"]}}, thinking=False)
    assert sorted_out([*reader.add(XML), *reader.end()])[2][0][0] == "add"
