"""The engine's end of the process in which grammars are tried. Everything here may wait."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import struct
import subprocess
import sys

from tinkex.engine.errors import EngineError, UserError
from tinkex.engine.frames import Closed, receive_exactly, send_frame

ANSWER = struct.Struct("<I")
WALL_S = 60.0
"""When an answer is given up. Processor time has a limit of its own, far below."""

_MODULE = "tinkex.engine.sampling.grammar.child"


class Trial:
    """One process for one vocabulary; started when first asked, and again when it ended."""

    def __init__(self, tokenizer: str, size: int, eos: tuple[int, ...]) -> None:
        self._vocabulary = (tokenizer, size, eos)
        self._process: subprocess.Popen[bytes] | None = None
        self._stream: socket.socket | None = None

    def size_of(self, grammar: str) -> int:
        """Compile it over there; the bytes it took. Raises UserError if it cannot be had."""
        try:
            stream = self._started()
            send_frame(stream, grammar)
            (length,) = ANSWER.unpack(receive_exactly(stream, ANSWER.size))
            answer = json.loads(receive_exactly(stream, length))
        except (Closed, OSError, ValueError) as error:
            self.close()
            raise EngineError(f"the process that tries grammars ended: {error}") from None
        if "error" in answer:
            raise UserError(answer["error"])
        return int(answer["bytes"])

    def close(self) -> None:
        """End the process. Safe to call again."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
        if self._stream is not None:
            with contextlib.suppress(OSError):
                self._stream.close()
        self._process = self._stream = None

    def _started(self) -> socket.socket:
        if self._stream is None:
            self._stream, theirs = socket.socketpair()
            self._stream.settimeout(WALL_S)
            with theirs:
                self._process = subprocess.Popen(
                    [sys.executable, "-m", _MODULE, str(theirs.fileno())],
                    pass_fds=[theirs.fileno()],
                    stdin=subprocess.DEVNULL,
                    process_group=0,
                    env=os.environ | {"CUDA_VISIBLE_DEVICES": ""},
                )
            send_frame(self._stream, self._vocabulary)
        return self._stream
