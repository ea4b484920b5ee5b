"""The compatibility table, made from what the tests saw."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import tinker

PATH = Path(__file__).parents[2] / "docs" / "compatibility.md"
COLUMNS = {
    "official": f"`tinker` {tinker.__version__}",
    "tinkex": "`tinkex`, over HTTP",
    "local": '`tinkex`, `"local"`',
}

HEADING = f"""# Compatibility

This page is written by the test suite (`tests/compat`), which calls every public method of the
installed official client, sync and async, against a live server, and checks the answers. The same
exercises run with our client over HTTP and with `base_url="local"`. A method that fails is a
failing test, and so is a page that no longer says what the tests saw.

Official client: `tinker` {tinker.__version__}. Two facts about it: `get_audit_log_async` works on
the client's own event loop only, and `SamplingClient.get_tokenizer` looks for the base model's name
in the Hugging Face cache, wherever the server has its files. One fact about `"local"`: its samplers
cannot leave their process, and `get_sampler_handle` says so.
"""


def render(methods: Sequence[str], passed: Mapping[str, set[str]]) -> str:
    """The page; `passed` holds the methods that worked, by column."""
    sections = [HEADING]
    for owner in dict.fromkeys(method.partition(".")[0] for method in methods):
        own = [method for method in methods if method.partition(".")[0] == owner]
        sections.append(f"## {owner}\n\n{_table(own, passed)}")
    return "\n".join(sections)


def _table(methods: Sequence[str], passed: Mapping[str, set[str]]) -> str:
    lines = [
        "| method | " + " | ".join(COLUMNS.values()) + " |",
        "|---" * (len(COLUMNS) + 1) + "|",
    ]
    for method in methods:
        marks = ["✓" if method in passed.get(column, ()) else "✗" for column in COLUMNS]
        lines.append(f"| `{method.partition('.')[2]}` | " + " | ".join(marks) + " |")
    return "\n".join(lines) + "\n"
