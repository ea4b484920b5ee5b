"""Whatever arrives, is cancelled or gives way, every page is counted and comes back."""

from __future__ import annotations

from typing import Any

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from support.sampling import make_sampler, prompt_of, sample
from tinkex.engine.messages import Done, Failed


class Traffic(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.sampler: Any = make_sampler(pages=9, rows=4, step_tokens=24, max_context=100)
        self.count = 0
        self.open: set[str] = set()
        self.closed: dict[str, object] = {}

    @rule(
        prompt=st.sampled_from([1, 2, 3]),
        length=st.integers(1, 60),
        samples=st.integers(1, 5),
        more=st.integers(0, 40),
        lane=st.sampled_from("abc"),
    )
    def arrive(self, prompt: int, length: int, samples: int, more: int, lane: str) -> None:
        self.count += 1
        op = f"s{self.count}"
        ids = prompt_of(prompt, length)
        command = sample(op, ids, num_samples=samples, max_tokens=more, lane=lane)
        self.sampler.submit(command)
        self.open.add(op)

    @rule(steps=st.integers(1, 12), seconds=st.floats(0.0, 1.0))
    def work(self, steps: int, seconds: float = 0.1) -> None:
        for _ in range(steps):
            events = self.sampler.step()
            self.sampler.took(seconds)
            for event in events:
                assert isinstance(event, Done)
                self.close(event.op, event)

    @rule(pick=st.randoms(use_true_random=False))
    def cancel(self, pick: Any) -> None:
        if self.open:
            op = pick.choice(sorted(self.open))
            failed = self.sampler.cancel(op)
            assert isinstance(failed, Failed)
            assert failed.kind == "cancelled"
            self.close(op, failed)

    def close(self, op: str, event: object) -> None:
        assert op not in self.closed
        self.open.remove(op)
        self.closed[op] = event

    @invariant()
    def books_balance(self) -> None:
        pool, scheduler = self.sampler.pool, self.sampler.scheduler
        held = {page for branch in scheduler.active for page in branch.pages}
        assert pool.used == len(held)
        assert pool.used + pool.available == pool.total
        assert all(not branch.pages for branch in scheduler.waiting)
        assert self.sampler.busy == bool(self.open)

    def teardown(self) -> None:
        for _ in range(2000):
            if not self.sampler.busy:
                break
            self.work(1)
        assert not self.open
        self.sampler.pool.check_idle()
        assert not self.sampler.imbalances
        assert self.sampler.versions.acquire("").users == 1


TestTraffic = Traffic.TestCase
TestTraffic.settings = settings(
    max_examples=12,
    stateful_step_count=25,
    deadline=None,
    suppress_health_check=list(HealthCheck),
)
