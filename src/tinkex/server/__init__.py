"""The server: the whole protocol over HTTP or in this process, a durable log, and scheduling.

It never imports torch or the engine, only the engine's messages. A request passes through these
rooms:

    app        builds the ASGI application around a `Core`; `local` opens one without a socket
    routes/    one module per noun: parse, call one service function, encode. Only routes know HTTP
    core       makes the parts below, starts and stops them in order
    tenants    an API key in, a tenant out; `keys` keeps configured ones
    fields     reads JSON requests by name and kind, refuses unknown fields; `refusals` are the
    answers

    sessions   alive by heartbeat, ended once
    runs       live training runs in memory: log, snapshot, where their state is
    submission operations in: once each, durable before acknowledged
    log        the order of one run's operations, gaps, replay. Pure
    scheduler  next runnable operation of every run to its engine, fair between tenants; restores
    runs kinds/     what each kind of operation means: body to command, result to outcome
    snapshots  when a run's state is written down, and what that makes superfluous
    supervisor one engine process per base model, restarted when it dies; `workers` is its interface
    sampling   samplers, samples in flight, cancellation; `completions` is batched polling
    waiting    promises: who waits for which outcome; `futures` answers polls from them or the store
    outcomes   the bytes a finished or failed promise holds
    fairness   whose turn it is, by tokens served

    store/     SQLite: one module per table, numbered migrations, one writer thread with group
    commit blobs      large bodies, results and weight folders on disk: whole or absent
    home       the folder a server owns, and the lock that says so
    reaper     what time ends: silent sessions, old results, idle runs
    checkpoints, manifest, archive, encryption, signing, models, metrics, trace: weights and
    operations

Contracts worth knowing before changing anything: an operation is acknowledged when row and payload
are on disk and done when its result is; a run's state is its last snapshot plus the replay of what
was accepted after it; sampling needs no log, a lost sample is answered with 410. Everything in the
core takes a `Clock` and runs on the event loop; only the store's writer and blocking disk calls use
threads.
"""
