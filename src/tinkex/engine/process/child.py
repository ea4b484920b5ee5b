"""An engine as a process: `python -m tinkex.engine.process.child FD`, FD an inherited socket.

The first frame in is a `WorkerConfig`, the others are commands; every frame out is an event. When
the parent closes its end, the unit of work in progress is finished and the process ends.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import logging
import os
import signal
import socket
import sys
import threading
from collections.abc import Sequence

from tinkex.engine.errors import EngineError
from tinkex.engine.frames import Closed, receive_frame, send_frame
from tinkex.engine.messages import Event, Failed
from tinkex.engine.process.allocator import keep_freed_memory
from tinkex.engine.process.at_once import STARTUP_OP
from tinkex.engine.process.orphans import ending_with_parent
from tinkex.engine.process.parent import SPARE

logger = logging.getLogger("tinkex.engine")

_BUILDING = "tinkex.engine.process.building"
_ON_GPU = ("triton.language", "torch.fx.experimental.symbolic_shapes")
"""The second is what torch imports in a process's first backward pass; with it comes sympy."""


class _Outbox:
    """Sends events; several threads may. Events for a parent that is gone are dropped."""

    def __init__(self, stream: socket.socket) -> None:
        self._stream = stream
        self._lock = threading.Lock()

    def __call__(self, event: Event) -> None:
        try:
            with self._lock:
                send_frame(self._stream, event)
        except (Closed, OSError):
            logger.debug("nobody listens any more: %s dropped", type(event).__name__)


def serve(stream: socket.socket, *, spare: bool = False) -> int:
    """Run one engine over `stream` until the other side closes; returns the exit status. Of a
    `spare` process it is one in place of another that died: its first call, which somebody waits
    for, is all the warm-up it makes."""
    keep_freed_memory()
    outbox = _Outbox(stream)
    try:
        config = receive_frame(stream)
    except Closed:
        return 0
    try:
        with ending_with_parent(stream):
            from tinkex.engine.process.building import build_worker

            worker = build_worker(config, outbox, warm=not spare)
    except (EngineError, OSError, ImportError, ValueError, RuntimeError) as error:
        if not isinstance(error, EngineError):  # else the parent says all there is to say
            logger.exception("the engine could not start")
        outbox(Failed(STARTUP_OP, "server", f"the engine could not start: {error}"))
        return 1

    def read() -> None:
        try:
            while True:
                worker.submit(receive_frame(stream))
        except (Closed, OSError):
            worker.stop()

    reader = threading.Thread(target=read, name="engine-commands", daemon=True)
    reader.start()
    worker.run()
    return 0


def load_libraries(names: Sequence[str]) -> None:
    """What takes seconds to import. Nothing of it is ever garbage: looking for some takes an eighth
    of that time, and more with every later look. What cannot be imported says so where it is used.
    """
    gc.disable()
    for name in names:
        with contextlib.suppress(ImportError):
            importlib.import_module(name)
    gc.freeze()
    gc.enable()


def load_more_for_a_gpu() -> None:
    """What a first pass would load: a spare process has the time, before anybody waits for it."""
    import torch

    if not torch.cuda.is_available():
        return
    load_libraries(_ON_GPU)
    with contextlib.suppress(ImportError):
        from triton.runtime.cache import triton_key

        # Triton reads all of itself, to tell its kernels in the cache from other versions'.
        triton_key()


def main() -> None:
    logging.basicConfig(
        level=os.environ.get("TINKEX_ENGINE_LOG", "WARNING"),
        format="%(asctime)s %(name)s %(levelname)s %(message)s",
    )
    # An interrupt typed at a terminal reaches the whole group; the parent decides what it means.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    spare = SPARE in sys.argv[2:]
    with socket.socket(fileno=int(sys.argv[1])) as stream:
        with ending_with_parent(stream):
            load_libraries([_BUILDING])
            if spare:
                load_more_for_a_gpu()
        status = serve(stream, spare=spare)
    sys.exit(status)


if __name__ == "__main__":
    main()
