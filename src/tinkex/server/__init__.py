"""The server: the whole protocol over HTTP or in this process, a durable log, and scheduling.

It never imports torch or the engine, only the engine's messages. Its rooms are in
`docs/architecture.md`; which of them may import which is in `tests/support/floors.py`.

Contracts to know before changing anything:

- An operation is acknowledged when row and payload are on disk, and done when its result is.
- A run's state is its last snapshot plus the replay of what was accepted after it (the snapshot
  before, if that one is damaged).
- Sampling needs no log: a lost sample is answered with 410.
- Everything in the core takes a `Clock` and runs on the event loop. Only the store's writer and
  blocking disk calls use threads, the latter through the loop, so that a simulation owns them too.
"""
