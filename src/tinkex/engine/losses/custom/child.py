"""The process in which custom losses are evaluated: `python -m ….child FD`, FD an inherited socket.

This process only loads torch and waits. For each pair of descriptors sent to it, a stream and a
page of shared memory, it forks a copy of itself and answers with the copy's process id. The copy
takes one loss and evaluates it again and again until the stream closes. It has no more memory and
time than it is given, and writes no files. Whatever kills it, an integer division that the
processor refuses or an allocation too many, kills nothing else; the page says at which node.

What comes back over the stream is text and numbers, never a pickle: see `replies`.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import resource
import signal
import socket
import sys
import warnings
from collections.abc import Sequence
from pathlib import Path
from types import FrameType

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from tinkex.engine.errors import UserError
from tinkex.engine.frames import Closed, receive_frame
from tinkex.engine.losses.custom.arithmetic import Work, evaluate
from tinkex.engine.losses.custom.graph import Graph
from tinkex.engine.losses.custom.replies import PAGE, PID, Job, Reply, send_reply, write_place

_PR_SET_PDEATHSIG = 1
"""From linux/prctl.h: a copy at work ends with the process it was forked from."""

MEMORY_BYTES = 1 << 30
CPU_S = 30.0
_POLITENESS = 5
"""A copy's niceness: it yields to the engine and the server wherever they want the core."""


def main() -> None:
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody waits for the copies
    load_shapes()
    with socket.socket(fileno=int(sys.argv[1])) as control:
        while True:
            _, descriptors, _, _ = socket.recv_fds(control, 1, 2)
            if len(descriptors) != 2:
                return
            copy = os.fork()
            if copy == 0:
                control.close()
                _live(*descriptors)
            control.sendall(PID.pack(copy))
            for descriptor in descriptors:
                os.close(descriptor)


def load_shapes() -> None:
    """The first operation on shapes alone imports hundreds of modules: once, not in each copy."""
    torch.add(torch.zeros(1, device="meta"), 1)


def _live(stream: int, page: int) -> None:
    """The whole life of a copy. It never returns."""
    try:
        _confine()
        with socket.socket(fileno=stream) as connection:
            serve(connection, mmap.mmap(page, PAGE))
    except (Closed, OSError):
        pass
    finally:
        os._exit(0)


def _confine() -> None:
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    os.nice(_POLITENESS)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))
    size = _address_space()
    if size is not None:
        resource.setrlimit(resource.RLIMIT_AS, (size + MEMORY_BYTES,) * 2)
    signal.signal(signal.SIGPROF, _out_of_time)


def _address_space() -> int | None:
    """What loading torch has taken already, where the system says."""
    facts = Path("/proc/self/statm")
    if not facts.exists():
        return None
    return int(facts.read_text().split()[0]) * resource.getpagesize()


class _OutOfTime(BaseException):
    """Not an `Exception`: it is no operation's failure."""


def _out_of_time(signum: int, frame: FrameType | None) -> None:
    raise _OutOfTime


def serve(stream: socket.socket, page: mmap.mmap) -> None:
    """Take a graph, then jobs, until the stream closes."""
    inputs, nodes, max_nodes = receive_frame(stream)
    graph = Graph(inputs, nodes, max_nodes)
    while True:
        job: Job = receive_frame(stream)
        signal.setitimer(signal.ITIMER_PROF, CPU_S)
        reply = answer(graph, job, page)
        signal.setitimer(signal.ITIMER_PROF, 0)
        send_reply(stream, reply)


def answer(graph: Graph, job: Job, page: mmap.mmap) -> Reply:
    """The losses, metrics and slopes of a job's datums, or what went wrong."""
    work = Work(job.limit, job.spent)
    try:
        found = [_evaluate(graph, index, job, work, page) for index in range(len(job.data))]
    except UserError as error:
        return Reply(str(error), work.spent)
    except _OutOfTime:
        return Reply(f"custom loss: it took more than {CPU_S:g} s of processor time", work.spent)
    except Exception as error:
        text = f"custom loss: its gradient failed: {type(error).__name__}: {error}"
        return Reply(text, work.spent)
    numbers = np.array([row for row, _ in found], np.float64)
    return Reply(None, work.spent, numbers, np.concatenate([slope for _, slope in found]))


def _evaluate(
    graph: Graph, index: int, job: Job, work: Work, page: mmap.mmap
) -> tuple[Sequence[float], NDArray[np.float32]]:
    values = {name: torch.from_numpy(array) for name, array in job.data[index].items()}
    leaf = values["logprobs"] = values["logprobs"].clone()
    with torch.set_grad_enabled(job.slopes):
        leaf.requires_grad_(job.slopes)
        loss, metrics = evaluate(graph, values, work, lambda node: write_place(page, index, node))
        slope = _slope(loss, leaf) if job.slopes else torch.zeros(0)
    if not bool(torch.isfinite(slope).all()):
        raise UserError(
            f"custom loss: its gradient by the logprobs of data[{job.places[index]}] is not finite"
        )
    numbers = [float(value.detach()) for value in (loss, *metrics.values())]
    return numbers, slope.reshape(-1).numpy()


def _slope(loss: Tensor, leaf: Tensor) -> Tensor:
    if not loss.requires_grad:
        return torch.zeros_like(leaf)
    (slope,) = torch.autograd.grad(loss, leaf, allow_unused=True)
    return torch.zeros_like(leaf) if slope is None else slope


if __name__ == "__main__":
    main()
