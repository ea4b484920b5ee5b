"""The process in which grammars are tried: `python -m ….child FD`, FD an inherited socket.

It reads the tokenizer once. For every grammar it forks a copy of itself, which has little time and
memory: whatever kills the copy kills nothing else. The answer is what is wrong with the grammar,
or how much memory it took. Answers are text, never a pickle: a grammar comes from a stranger.
"""

from __future__ import annotations

import json
import os
import resource
import signal
import socket
import sys
from pathlib import Path

from tinkex.engine.errors import UserError
from tinkex.engine.frames import Closed, receive_frame
from tinkex.engine.sampling.grammar.trial import ANSWER
from tinkex.engine.sampling.grammar.vocabulary import Vocabulary

CPU_S = 2
MEMORY_BYTES = 128 << 20


def main() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    with socket.socket(fileno=int(sys.argv[1])) as stream:
        try:
            vocabulary = Vocabulary(*receive_frame(stream))
            while True:
                answer = tried(vocabulary, receive_frame(stream))
                stream.sendall(ANSWER.pack(len(answer)) + answer)
        except Closed:
            return


def tried(vocabulary: Vocabulary, grammar: str) -> bytes:
    """The answer of a forked copy, or how it ended."""
    reading, writing = os.pipe()
    copy = os.fork()
    if copy == 0:
        os.close(reading)
        _try_and_exit(vocabulary, grammar, writing)
    os.close(writing)
    with os.fdopen(reading, "rb") as pipe:
        answer = pipe.read()
    _, status = os.waitpid(copy, 0)
    return answer if os.WIFEXITED(status) and answer else _why(status)


def _try_and_exit(vocabulary: Vocabulary, grammar: str, writing: int) -> None:
    """The whole life of a copy. It never returns."""
    try:
        _confine()
        before = _memory()
        try:
            vocabulary.compile(grammar)
            answer: dict[str, int | str] = {"bytes": max(0, _memory() - before)}
        except UserError as error:
            answer = {"error": str(error)}
        os.write(writing, json.dumps(answer).encode())
    finally:
        os._exit(0)


def _confine() -> None:
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))
    resource.setrlimit(resource.RLIMIT_CPU, (CPU_S, CPU_S + 1))
    size = _address_space()
    if size is not None:
        resource.setrlimit(resource.RLIMIT_AS, (size + MEMORY_BYTES,) * 2)


def _address_space() -> int | None:
    facts = Path("/proc/self/statm")
    if not facts.exists():
        return None
    return int(facts.read_text().split()[0]) * resource.getpagesize()


def _memory() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def _why(status: int) -> bytes:
    limit = f"it takes more than {MEMORY_BYTES >> 20} MiB to compile"
    if os.WIFSIGNALED(status) and os.WTERMSIG(status) in (signal.SIGXCPU, signal.SIGKILL):
        limit = f"it takes more than {CPU_S} s to compile"
    return json.dumps({"error": f"grammar: {limit}; simplify it"}).encode()


if __name__ == "__main__":
    main()
