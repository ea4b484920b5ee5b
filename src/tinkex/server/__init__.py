"""The server: the whole protocol over HTTP or in this process, a durable log, and scheduling.

It never imports torch or the engine, only the engine's messages. A request passes through these
rooms, and each imports only from those below it (`tests/support/floors.py` has the exact table):

    hosting/      a server in a terminal (`serve`, `terminal`) or inside a process (`embedded`)
    app           the ASGI application around a `Core`
    connections/  sockets and HTTP/1.1; `slow_clients` cuts who dawdles, `doorway` lets the home's
                  owner in
    http/         routing, what routes read and answer, OpenAPI, Prometheus; `routes/` has one
                  module per noun: parse, call one service function, encode. Only they know HTTP
    core          makes the parts below, starts and stops them in order
    views/        what people look up, and its JSON shapes
    maintenance   what time ends: silent sessions, old results, idle runs
    training/     models made, operations in once each and durable before acknowledged
                  (`submission`), what every engine does next (`scheduler`, `carry`, `admission`),
                  states in and out of engine memory (`residency`, `snapshots`), ends (`results`)
    polls         answers polls: from a promise, from the store, or with why there is nothing yet
    operations/   `runs` with their `log`: order, gaps, replay, pure; what each kind means: body to
                  commands, result to outcome (`kinds`, `base` and a module each)
    sampling/     samples in flight: `jobs` is the protocol's numbering, `lanes` the way through an
                  engine; `samplers` are handles on weights that never change
    tracing/      what a session's requests took
    protocol/     requests by field and kind, unknown fields refused; the bytes of results
    promises      who waits for what, woken when its outcome is known
    engines/      where base models come from; the `pool` by name, an `engine` kept alive, `worker`
                  its interface, `child_process` the real one, what it has loaded for sampling
    checkpoints/  weights that are kept, checked, copied, exported and linked to
    tenancy/      an API key in, a tenant out; sessions, use, and whose the things in a home are
    storage/      the `home` and its lock, `blobs` of bodies and results, `folders` of weights,
                  `pins`; `database/` is SQLite: a module per table, numbered migrations, one writer
    budgets, fairness, refusals, settings, clock, listening
                  bytes at once; whose turn it is; why not; every number; time as an object; uptime

Contracts worth knowing before changing anything: an operation is acknowledged when row and payload
are on disk and done when its result is; a run's state is its last snapshot plus the replay of what
was accepted after it (the snapshot before, if that one is damaged); sampling needs no log, a lost
sample is answered with 410. Everything in the core takes a `Clock` and runs on the event loop; only
the store's writer and blocking disk calls use threads, the latter through the loop, so that a
simulated loop owns them too.
"""
