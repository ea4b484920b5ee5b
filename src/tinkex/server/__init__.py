"""The server: the whole protocol over HTTP or in this process, a durable log, and scheduling.

It never imports torch or the engine, only the engine's messages. A request passes through these
rooms:

    app         the ASGI application around a `Core`; `serve` puts it on a socket, `local` does not
    foreground  a server in a terminal; `slow_clients` cuts who dawdles, `open_files` is their limit
    routes/     one module per noun: parse, call one service function, encode. Only they know HTTP
    core        makes the parts below, starts and stops them in order
    tenants     an API key in, a tenant out; `keys` keeps configured ones
    fields      JSON requests by name and kind, unknown fields refused; `refusals` are the answers
    openapi     the API's description, made from the routes; `probing` reads what readers read

    sessions    alive by heartbeat, ended once
    training    models made (`new_runs` reads what is wanted), operations handed in; `runs` are
                the live ones with their logs
    submission  operations in: once each, durable before acknowledged
    log         the order of one run's operations, gaps, replay. Pure
    scheduler   what every engine does next, fair between tenants; restores, snapshots, evicts
    kinds/      what each kind of operation means: body to commands, result to outcome
    bodies, endings, snapshots, pins
                bodies read back; ends written down; states written down; what loads still need
    engines     by base model; `supervisor` keeps each alive; `workers` is their interface,
                `launch` the real process
    sampling    samples in flight; `samplers`, `sample_request`, `weights`, `sample_windows`
    waiting     promises; `completions` for batched polling; `futures` answers polls
    outcomes    the bytes a finished or failed promise holds; `codec` the binary ones
    sampler_gap how far a run's trainer is from its sampler, with the same weights
    fairness    whose turn it is, by tokens served

    store/      SQLite: a module per table, numbered migrations, one writer with group commit
    segments    large bodies and results; `blobs` folders of weights: whole or absent
    home        the folder a server owns, and the lock that says so; `doorway` lets its owner's
                other processes in, `belongings` says whose the things in it are
    disk_watch, unnamed_weights, home_usage, home_cleaning
                room on the disk: watched, bounded, shown, got back
    reaper      what time ends: silent sessions, old results, idle runs
    checkpoints, manifest, archive, byte_ranges, encryption, signing, urls
                weights that are kept, checked, exported and linked to
    browsing, presentation, usage, journal, narrator, traces, metrics, observing
                what people look up
    models      where base models come from; `model_check` whether an engine could serve one

Contracts worth knowing before changing anything: an operation is acknowledged when row and payload
are on disk and done when its result is; a run's state is its last snapshot plus the replay of what
was accepted after it (the snapshot before, if that one is damaged); sampling needs no log, a lost
sample is answered with 410. Everything in the core takes a `Clock` and runs on the event loop; only
the store's writer and blocking disk calls use threads, the latter through the loop, so that a
simulated loop owns them too.
"""
