"""Draws docs/demo.svg from a real run of `tinkex demo` on a pseudo-terminal.

    python scripts/record_demo.py

Colours and progress bars are those a person sees; the picture is the screen when the demo is done.
Knows terminals, not the demo: any command can be given instead, after `--`.
"""

from __future__ import annotations

import argparse
import io
import os
import pty
import re
import subprocess
import sys
from pathlib import Path

from rich.console import Console
from rich.text import Text

ROOT = Path(__file__).resolve().parent.parent
COLUMNS = 92
_CONTROL = re.compile(r"\x1b\[(?P<number>\d*)(?P<kind>[ABCDGJK])|\x1b\[\?\d+[hl]|(?P<char>[\r\n])")


def main() -> int:
    options = _parse()
    status, output = record(options.command or [sys.executable, "-m", "tinkex", "demo"])
    if status:
        print(output, file=sys.stderr)
        print(f"the command failed with {status}; the picture was not changed", file=sys.stderr)
        return 1
    draw(final_screen(output), options.out, options.title)
    print(options.out)
    return 0


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=ROOT / "docs" / "demo.svg")
    parser.add_argument("--title", default="tinkex demo")
    parser.add_argument("command", nargs="*")
    return parser.parse_args()


def record(command: list[str]) -> tuple[int, str]:
    """Run on a pseudo-terminal; the exit status and all bytes written, as text."""
    leader, follower = pty.openpty()
    environ = {
        **os.environ,
        "COLUMNS": str(COLUMNS),
        "LINES": "50",
        "TERM": "xterm-256color",
        "COLORTERM": "truecolor",
    }
    process = subprocess.Popen(
        command, stdin=subprocess.DEVNULL, stdout=follower, stderr=follower, env=environ
    )
    os.close(follower)
    pieces = []
    while True:
        try:
            piece = os.read(leader, 65536)
        except OSError:  # Linux: the other end is closed
            piece = b""
        if not piece:
            break
        pieces.append(piece)
        sys.stdout.buffer.write(piece)
        sys.stdout.buffer.flush()
    os.close(leader)
    return process.wait(), b"".join(pieces).decode("utf-8", "replace")


def final_screen(output: str) -> list[str]:
    """The lines that remain, after all rewriting of progress bars, with their colours.

    A rewritten line is always written whole by the programs we record, so a carriage return
    followed by text replaces the line.
    """
    lines, row, fresh = [""], 0, False
    position = 0
    for match in _CONTROL.finditer(output):
        lines[row], fresh = _written(lines[row], output[position : match.start()], fresh)
        position = match.end()
        if match["char"] == "\n":
            row += 1
            fresh = True
            lines += [""] * (row + 1 - len(lines))
        elif match["char"] == "\r":
            fresh = True
        elif match["kind"] == "A":
            row = max(0, row - int(match["number"] or 1))
            fresh = True
        elif match["kind"] == "K" and match["number"] == "2":
            lines[row] = ""
    lines[row], _ = _written(lines[row], output[position:], fresh)
    return lines


def _written(line: str, text: str, fresh: bool) -> tuple[str, bool]:
    """The line after `text`, and whether the next text still starts it afresh."""
    if not text:
        return line, fresh
    return (text if fresh else line + text), False


def draw(lines: list[str], path: Path, title: str) -> None:
    console = Console(record=True, width=COLUMNS, file=io.StringIO(), force_terminal=True)
    for line in lines:
        console.print(Text.from_ansi(line), soft_wrap=False)
    path.write_text(console.export_svg(title=title), encoding="utf-8")


if __name__ == "__main__":
    sys.exit(main())
