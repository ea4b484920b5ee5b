"""The engine's end of the processes that evaluate custom losses.

One process is started from nothing, which takes seconds, and then forks a copy for each loss, which
takes milliseconds. Everything here may wait, so only the evaluator's threads come here.
"""

from __future__ import annotations

import mmap
import os
import signal
import socket
import subprocess
import sys
import tempfile
import threading

from tinkex.engine.frames import Closed, receive_exactly, send_frame
from tinkex.engine.losses.custom.graph import Graph
from tinkex.engine.losses.custom.replies import PAGE, PID, Job, Reply, read_place, receive_reply
from tinkex.engine.messages import CustomLoss

WALL_S = 300.0
"""When an answer is given up. Work and processor time have limits of their own, far below."""

_MODULE = "tinkex.engine.losses.custom.child"
_ENVIRONMENT = {
    "OMP_NUM_THREADS": "1",
    "MKL_NUM_THREADS": "1",
    "CUDA_VISIBLE_DEVICES": "",
    "MALLOC_MMAP_THRESHOLD_": str(1 << 20),
}
"""The last for glibc: large values are given back when freed. In its heap, the holes they leave
between small ones are a few bytes too short for the next, and the process would grow for ever."""


class Nursery:
    """The process that forks. Its end, by whatever cause, raises `Closed` or `OSError`."""

    def __init__(self) -> None:
        self._control, theirs = socket.socketpair()
        self._asking = threading.Lock()
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-m", _MODULE, str(theirs.fileno())],
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                process_group=0,
                env=os.environ | _ENVIRONMENT,
            )

    def fork(self, stream: socket.socket, page: int) -> int:
        """A copy that serves `stream`; its process id."""
        with self._asking:
            socket.send_fds(self._control, [b"."], [stream.fileno(), page])
            (copy,) = PID.unpack(receive_exactly(self._control, PID.size))
        return int(copy)

    def close(self) -> None:
        """End it and its copies."""
        self._process.kill()
        self._process.wait()
        self._control.close()


class LossProcess:
    """A copy that evaluates one loss, for one caller at a time."""

    def __init__(self, nursery: Nursery, loss: CustomLoss, graph: Graph) -> None:
        self._graph = graph
        self.alive = True
        self._stream, theirs = socket.socketpair()
        self._stream.settimeout(WALL_S)
        with theirs, tempfile.TemporaryFile() as file:
            file.truncate(PAGE)
            self._page = mmap.mmap(file.fileno(), PAGE)
            self._pid = nursery.fork(theirs, file.fileno())
        send_frame(self._stream, (loss.inputs, loss.nodes, len(loss.nodes)))

    def run(self, job: Job) -> Reply:
        """The answer to a job, or what the end of the process says about it."""
        cells = sum(datum["logprobs"].size for datum in job.data) if job.slopes else 0
        numbers = len(job.data) * (1 + len(self._graph.metrics))
        try:
            send_frame(self._stream, job)
            return receive_reply(self._stream, numbers, cells)
        except TimeoutError:
            self.alive = False
            os.kill(self._pid, signal.SIGKILL)
            return Reply(f"custom loss: no result after {WALL_S:g} s {self._place(job)}", job.limit)
        except (Closed, OSError):
            self.alive = False
            return Reply(
                f"custom loss: the process that evaluated it was ended by the system "
                f"{self._place(job)}: this cannot be computed",
                job.limit,
            )

    def close(self) -> None:
        """A copy that waits for its next job ends."""
        self._stream.close()
        self._page.close()

    def _place(self, job: Job) -> str:
        datum, index = read_place(self._page)
        place = job.places[datum] if 0 <= datum < len(job.places) else "?"
        if not 0 <= index < len(self._graph.nodes):
            return f"at data[{place}]"
        node = self._graph.nodes[index]
        return f"in node {node.name[:80]!r} ({node.target}) of data[{place}] or in its gradient"
