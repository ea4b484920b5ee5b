"""What the rules of a walk are made of: requests, and their answers compared with the model's."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import count
from typing import Any, ClassVar

import httpx
from hypothesis.stateful import (
    RuleBasedStateMachine,
)

from lifecycle.calls import Calls
from lifecycle.model import Checkpoint, Run, Sampler, Session, State
from lifecycle.truth import Truth
from support.server_process import ServerProcess

ENDED = (404, 410)
"""A run of an ended session: gone at once, unknown once the server has cleaned up."""


@dataclass
class Work:
    """An operation of a run: its requests, and the state before and after it."""

    kind: str
    argument: Any
    before: State
    after: State
    seq: int
    request_id: str = ""


class Moves(RuleBasedStateMachine):
    """Two fresh tenants on a server, what they did, and what they must find."""

    server: ClassVar[ServerProcess]
    truth: ClassVar[Truth]
    numbers: ClassVar[Iterator[int]] = count()
    harm: ClassVar[int] = 2
    """How often a walk may hurt the server: each costs seconds."""

    def _arrive(self) -> None:
        """Two tenants whom nobody has seen before."""
        number = next(self.numbers)
        self.calls = [Calls(self.server.url, f"tml-walk-{number}-{who}") for who in (0, 1)]
        self.all_sessions: list[Session] = []
        self.all_runs: list[Run] = []
        self.all_checkpoints: dict[str, Checkpoint] = {}
        self.all_samplers: list[Sampler] = []
        self.harmed = 0

    def _open(self, who: int) -> Session:
        answer = self._post(who, "create_session", {"tags": ["walk"], "user_metadata": {}})
        assert answer.status_code == 200, answer.text
        session = Session(answer.json()["session_id"], who)
        self.all_sessions.append(session)
        return session

    def _post(self, who: int, path: str, body: dict[str, Any]) -> httpx.Response:
        kept = {name: value for name, value in body.items() if value is not None}
        return self.calls[who].send("POST", path, kept)

    def _accepted(self, session: Session, answers: list[httpx.Response]) -> bool:
        """Whether work was taken, as it must be while the session lives; twice is once."""
        if not session.alive:
            assert all(each.status_code in ENDED for each in answers), answers[0].text
            return False
        assert all(each.status_code == 200 for each in answers), [a.text for a in answers]
        assert len({each.json()["request_id"] for each in answers}) == 1
        return True

    def _run(self, session: Session, rank: int, state: State, answer: httpx.Response) -> Run:
        made = Run(answer.json()["model_id"], session, rank, state)
        found = self.calls[session.tenant].result(answer.json()["request_id"])
        assert found["model_id"] == made.id == f"{session.id}:train:{session.runs}", found
        session.runs += 1
        session.run_ids.append(made.id)
        self.all_runs.append(made)
        return made

    def _sampler(self, session: Session, found: str, weights: str, path: str | None) -> Sampler:
        assert found == f"{session.id}:sample:{session.samplers}"
        session.samplers += 1
        session.sampler_ids.append(found)
        made = Sampler(found, session.tenant, weights, path)
        self.all_samplers.append(made)
        return made

    def _check_failed(self, who: int, answer: httpx.Response, says: str) -> None:
        found = self.calls[who].result(answer.json()["request_id"])
        assert found["category"] == "user", found
        assert says in found["error"], found

    def _submit(self, run: Run, work: list[Any], order: Any, doubled: bool) -> list[Work]:
        """Hand operations in; the run's state is what they lead to. [] when they are not taken."""
        planned, state = [], run.state
        for offset, each in enumerate(work):
            is_pass = isinstance(each, int)
            after = state.after_pass(each) if is_pass else state.after_step(each)
            kind = "pass" if is_pass else "step"
            planned.append(Work(kind, each, state, after, run.seq + 1 + offset))
            state = after
        for each in order.sample(planned, len(planned)):
            answers = [self._hand_in(run, each) for _ in range(1 + doubled)]
            if not self._accepted(run.session, answers):
                return []
            each.request_id = answers[0].json()["request_id"]
        run.seq += len(planned)
        run.state = state
        return planned

    def _hand_in(self, run: Run, work: Work) -> httpx.Response:
        calls = self.calls[run.session.tenant]
        if work.kind == "pass":
            return calls.pass_(run.id, work.seq, work.argument)
        params = {"learning_rate": work.argument}
        body = {"model_id": run.id, "seq_id": work.seq, "adam_params": params}
        return calls.send("POST", "optim_step", body)

    def _await(self, run: Run, submitted: list[Work]) -> None:
        for each in submitted:
            found = self.calls[run.session.tenant].result(each.request_id)
            if each.kind == "pass":
                assert isinstance(found, bytes), found
                self.truth.check_pass(each.before, each.argument, found)
            else:
                assert "metrics" in found, found

    def _now(self, checkpoint: Checkpoint) -> Checkpoint:
        """What is at this one's path now: a later save may have taken it."""
        return self.all_checkpoints[checkpoint.path]

    def _check_lists(self, who: int) -> None:
        calls, most = self.calls[who], "limit=1000&offset=0"
        found = calls.send("GET", f"sessions?{most}").json()["sessions"]
        mine = [each for each in self.all_sessions if each.tenant == who]
        assert sorted(found) == sorted(each.id for each in mine)
        listed = calls.send("GET", f"training_runs?{most}").json()["training_runs"]
        run_ids = [name for session in mine for name in session.run_ids]
        assert sorted(each["training_run_id"] for each in listed) == sorted(run_ids)
        self._check_checkpoints(who)
        for session in mine:
            shown = calls.send("GET", f"sessions/{session.id}").json()
            assert sorted(shown["training_run_ids"]) == sorted(session.run_ids)
            assert sorted(shown["sampler_ids"]) == sorted(session.sampler_ids)

    def _check_checkpoints(self, who: int) -> None:
        listed = self.calls[who].send("GET", "checkpoints?limit=1000&offset=0").json()
        found = {
            each["tinker_path"]: (each["public"], each["expires_at"] is not None)
            for each in listed["checkpoints"]
        }
        wanted = {
            each.path: (each.public, each.expires)
            for each in self.all_checkpoints.values()
            if each.tenant == who and not each.deleted
        }
        assert found == wanted
        assert listed["cursor"]["total_count"] == len(wanted)
