"""Whether a program that ran in a process of its own ended well."""

from __future__ import annotations

import signal


def ended_well(status: int, *, official: bool) -> bool:
    """Exit status 0. With the official SDK an abort is taken for it: about one process in twenty
    aborts while the interpreter shuts down, all its work done (tinker 0.36.0, this machine,
    2026-11-15). The caller must have another way to see that the work was done."""
    return status == 0 or (official and status == -signal.SIGABRT)
