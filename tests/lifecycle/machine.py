"""Random walks through everything clients can do, each answer compared with the model's."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st
from hypothesis.stateful import (
    Bundle,
    initialize,
    invariant,
    multiple,
    precondition,
    rule,
)

from lifecycle.model import Checkpoint, Run, Sampler, Session, State, named
from lifecycle.moves import Moves
from lifecycle.truth import Truth
from support.server_process import MODEL, ServerProcess

RATES = (1e-2, 3e-3)
KINDS = {"save_weights": "weights", "save_weights_for_sampler": "sampler_weights"}
ranks, seeds, batches = st.sampled_from((2, 4)), st.integers(1, 2), st.integers(0, 2)
rates, tenants = st.sampled_from(RATES), st.integers(0, 1)


class LifeCycle(Moves):
    """Two fresh tenants on a server that may be stopped, killed and started under them."""

    sessions, runs = Bundle("sessions"), Bundle("runs")
    checkpoints, samplers = Bundle("checkpoints"), Bundle("samplers")

    @initialize(target=sessions)
    def begin(self) -> Any:
        self._arrive()
        return multiple(*(self._open(who) for who in (0, 1)))

    def teardown(self) -> None:
        if hasattr(self, "calls"):
            for who in (0, 1):
                self._check_lists(who)
            for calls in self.calls:
                calls.close()

    # ---- sessions

    @rule(target=sessions, who=tenants)
    def open_session(self, who: int) -> Session:
        return self._open(who)

    @rule(session=sessions)
    def heartbeat(self, session: Session) -> None:
        answer = self._post(session.tenant, "session_heartbeat", {"session_id": session.id})
        assert answer.status_code == (200 if session.alive else 410), answer.text

    @rule(session=sessions, reason=st.sampled_from(("success", "errored", "interrupted")))
    @precondition(lambda self: sum(each.alive for each in self.all_sessions) > 2)
    def finish(self, session: Session, reason: str) -> None:
        body = {"reason": {"type": reason}, "detail": None}
        answer = self._post(session.tenant, f"sessions/{session.id}/finish", body)
        assert answer.status_code == 200, answer.text
        session.alive = False

    # ---- runs

    @rule(target=runs, session=sessions, rank=ranks, seed=seeds, twice=st.booleans())
    def create_run(self, session: Session, rank: int, seed: int, twice: bool) -> Any:
        calls = self.calls[session.tenant]
        answers = [calls.create_run(session.id, session.runs, rank, seed) for _ in range(1 + twice)]
        if not self._accepted(session, answers):
            return multiple()
        return self._run(session, rank, State.created(rank, seed), answers[0])

    @rule(target=runs, session=sessions, checkpoint=checkpoints, optimizer=st.booleans())
    def create_from(self, session: Session, checkpoint: Checkpoint, optimizer: bool) -> Any:
        checkpoint = self._now(checkpoint)
        body = {
            "session_id": session.id,
            "model_seq_id": session.runs,
            "path": checkpoint.path,
            "optimizer": optimizer,
        }
        answer = self._post(session.tenant, "load_weights", body)
        if session.alive and not checkpoint.readable_by(session.tenant):
            assert answer.status_code == 404, answer.text
            return multiple()
        if not self._accepted(session, [answer]):
            return multiple()
        if optimizer and checkpoint.kind != "weights":
            self._check_failed(session.tenant, answer, "optimizer")
            session.runs += 1
            session.run_ids.append(answer.json()["model_id"])
            return multiple()
        state = checkpoint.state.loaded(checkpoint.rank, optimizer)
        return self._run(session, checkpoint.rank, state, answer)

    @rule(
        run=runs,
        work=st.lists(st.one_of(batches, rates), min_size=1, max_size=5),
        order=st.randoms(use_true_random=False),
        doubled=st.booleans(),
    )
    def train(self, run: Run, work: list[Any], order: Any, doubled: bool) -> None:
        """Some passes and steps, submitted in any order and perhaps twice, then awaited."""
        self._await(run, self._submit(run, work, order, doubled))

    @rule(run=runs, checkpoint=checkpoints, optimizer=st.booleans())
    def load(self, run: Run, checkpoint: Checkpoint, optimizer: bool) -> None:
        tenant, seq, checkpoint = run.session.tenant, run.seq + 1, self._now(checkpoint)
        body = {
            "model_id": run.id,
            "seq_id": seq,
            "path": checkpoint.path,
            "optimizer": optimizer,
        }
        answer = self._post(tenant, "load_weights", body)
        if not self._accepted(run.session, [answer]):
            return
        run.next_seq()
        found = self.calls[tenant].result(answer.json()["request_id"])
        fits = checkpoint.rank == run.rank and (not optimizer or checkpoint.kind == "weights")
        if checkpoint.readable_by(tenant) and fits:
            assert found["path"] == checkpoint.path, found
            run.state = checkpoint.state.loaded(run.rank, optimizer)
        else:
            assert found["category"] == "user", found

    # ---- checkpoints

    @rule(
        target=checkpoints,
        run=runs,
        kind=st.sampled_from(sorted(KINDS)),
        name=st.sampled_from(("a", "b", "c")),
        ttl=st.sampled_from((None, 3600, 7200, 5)),
        overwrite=st.booleans(),
    )
    def save(self, run: Run, kind: str, name: str, ttl: int | None, overwrite: bool) -> Any:
        tenant, path = run.session.tenant, f"tinker://{run.id}/{KINDS[kind]}/{name}"
        body = {"model_id": run.id, "seq_id": run.seq + 1, "path": name, "ttl_seconds": ttl}
        overwrite = overwrite and kind == "save_weights"
        answer = self._post(tenant, kind, {**body, "overwrite": True} if overwrite else body)
        if not self._accepted(run.session, [answer]):
            return multiple()
        run.next_seq()
        found = self.calls[tenant].result(answer.json()["request_id"])
        earlier = self.all_checkpoints.get(path)
        if ttl == 5 or (earlier and not earlier.deleted and not overwrite):
            assert found["category"] == "user", found
            return multiple()
        assert found["path"] == path, found
        made = Checkpoint(path, tenant, KINDS[kind], run.rank, run.state, expires=ttl is not None)
        self.all_checkpoints[path] = made
        self.truth.check_files(made)
        return made

    @rule(checkpoint=checkpoints, who=tenants, public=st.booleans())
    def publish(self, checkpoint: Checkpoint, who: int, public: bool) -> None:
        checkpoint = self._now(checkpoint)
        path = f"{_place(checkpoint)}/publish"
        answer = self.calls[who].send("POST" if public else "DELETE", path)
        mine = checkpoint.tenant == who and not checkpoint.deleted
        assert answer.status_code == (200 if mine else 404), answer.text
        if mine:
            checkpoint.public = public

    @rule(checkpoint=checkpoints, who=tenants, ttl=st.sampled_from((None, 3600, 1)))
    def set_ttl(self, checkpoint: Checkpoint, who: int, ttl: int | None) -> None:
        checkpoint = self._now(checkpoint)
        answer = self.calls[who].send("PUT", f"{_place(checkpoint)}/ttl", {"ttl_seconds": ttl})
        mine = checkpoint.tenant == who and not checkpoint.deleted
        assert answer.status_code == (422 if ttl == 1 else 200 if mine else 404), answer.text
        if mine and ttl != 1:
            checkpoint.expires = ttl is not None

    @rule(checkpoint=checkpoints, who=tenants)
    def delete(self, checkpoint: Checkpoint, who: int) -> None:
        checkpoint = self._now(checkpoint)
        answer = self.calls[who].send("DELETE", _place(checkpoint))
        mine = checkpoint.tenant == who and not checkpoint.deleted
        assert answer.status_code == (200 if mine else 404), answer.text
        checkpoint.deleted = checkpoint.deleted or mine

    @rule(checkpoint=checkpoints, who=tenants)
    def look_up(self, checkpoint: Checkpoint, who: int) -> None:
        checkpoint = self._now(checkpoint)
        answer = self._post(who, "weights_info", {"tinker_path": checkpoint.path})
        readable = checkpoint.readable_by(who)
        assert answer.status_code == (200 if readable else 404), answer.text
        if readable:
            assert answer.json()["lora_rank"] == checkpoint.rank

    # ---- samplers

    @rule(target=samplers, session=sessions, checkpoint=checkpoints)
    def make_sampler(self, session: Session, checkpoint: Checkpoint) -> Any:
        checkpoint = self._now(checkpoint)
        body = {
            "session_id": session.id,
            "sampling_session_seq_id": session.samplers,
            "model_path": checkpoint.path,
        }
        answer = self._post(session.tenant, "create_sampling_session", body)
        if session.alive and not checkpoint.readable_by(session.tenant):
            assert answer.status_code == 404, answer.text
            return multiple()
        assert answer.status_code == (200 if session.alive else 410), answer.text
        if not session.alive:
            return multiple()
        found = answer.json()["sampling_session_id"]
        return self._sampler(session, found, checkpoint.state.weights, checkpoint.path)

    @rule(target=samplers, session=sessions)
    def make_base_sampler(self, session: Session) -> Any:
        body = {
            "session_id": session.id,
            "sampling_session_seq_id": session.samplers,
            "base_model": MODEL,
        }
        answer = self._post(session.tenant, "create_sampling_session", body)
        assert answer.status_code == (200 if session.alive else 410), answer.text
        if not session.alive:
            return multiple()
        found = answer.json()["sampling_session_id"]
        return self._sampler(session, found, named("base"), None)

    @rule(target=samplers, run=runs)
    def make_nameless_sampler(self, run: Run) -> Any:
        session = run.session
        body = {
            "model_id": run.id,
            "seq_id": run.seq + 1,
            "sampling_session_seq_id": session.samplers,
        }
        answer = self._post(session.tenant, "save_weights_for_sampler", body)
        if not self._accepted(session, [answer]):
            return multiple()
        run.next_seq()
        found = self.calls[session.tenant].result(answer.json()["request_id"])
        return self._sampler(session, found["sampling_session_id"], run.state.weights, None)

    @rule(sampler=samplers, who=tenants)
    def sample(self, sampler: Sampler, who: int) -> None:
        seq = sampler.next_seq()
        answer = self.calls[who].sample(sampler.id, seq)
        if who != sampler.tenant:
            assert answer.status_code == 404, answer.text
            return
        assert answer.status_code == 200, answer.text
        found = self.calls[who].result(answer.json()["request_id"])
        assert isinstance(found, bytes), found
        self.truth.check_sample(sampler.weights, sampler.path, found)
        told = self.calls[who].send("GET", f"samplers/{sampler.id}").json()
        assert told.get("model_path") == sampler.path

    # ---- another tenant's ids

    @rule(run=runs)
    def a_stranger_tries_a_run(self, run: Run) -> None:
        stranger = self.calls[1 - run.session.tenant]
        seq = run.seq + 1
        step = {"model_id": run.id, "seq_id": seq, "adam_params": {"learning_rate": 1.0}}
        tried = [
            stranger.pass_(run.id, seq, 0),
            stranger.send("POST", "optim_step", step),
            stranger.send("POST", "get_info", {"model_id": run.id}),
            stranger.send("POST", "session_heartbeat", {"session_id": run.session.id}),
            stranger.send("POST", f"sessions/{run.session.id}/finish", {}),
            stranger.send("GET", f"training_runs/{run.id}"),
            stranger.send("POST", "retrieve_future", {"request_id": f"{run.id}:{run.seq}"}),
        ]
        assert [each.status_code for each in tried] == [404] * len(tried), tried

    # ---- harm

    @precondition(lambda self: self.harmed < self.harm)
    @rule(
        run=runs,
        work=st.lists(st.one_of(batches, rates), min_size=1, max_size=4),
        order=st.randoms(use_true_random=False),
        how=st.sampled_from(("engine", "server", "stop")),
    )
    def train_through_harm(self, run: Run, work: list[Any], order: Any, how: str) -> None:
        """Work is accepted, a process dies or stops, and the work is there all the same."""
        self.harmed += 1
        submitted = self._submit(run, work, order, False)
        if how == "engine":
            self.server.kill_engine()
        elif how == "server":
            self.server.kill()
        else:
            self.server.stop()
        if how != "engine":
            self.server.start()
            self.server.wait_ready()
        self._await(run, submitted)

    # ---- lists

    @rule(who=tenants)
    def lists_agree(self, who: int) -> None:
        self._check_lists(who)

    @invariant()
    def healthy(self) -> None:
        if hasattr(self, "calls"):
            status = self.calls[0].send("GET", "healthz").status_code
            assert status in (200, 503), status


def _place(checkpoint: Checkpoint) -> str:
    run, kind, name = checkpoint.path.removeprefix("tinker://").split("/")
    return f"training_runs/{run}/checkpoints/{kind}/{name}"


def walking(server: ServerProcess, truth: Truth, harm: int) -> type[LifeCycle]:
    """The machine for one server."""
    return type("Walk", (LifeCycle,), {"server": server, "truth": truth, "harm": harm})
