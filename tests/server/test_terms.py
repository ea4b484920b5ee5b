"""Tenants with terms of their own: shares by weight in training and sampling, and their limits."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from support.fake_engine import FakeEngine
from support.served import served
from tinkex.engine.messages import Sample, SamplingParams
from tinkex.server.fairness import Fairness
from tinkex.server.sampling.rides import Ride, ServedWeights
from tinkex.server.settings import Settings, Terms
from tinkex.server.tenancy.keys import KeyProblem
from tinkex.server.tenancy.tenants import hash_key
from tinkex.server.tenancy.terms import TenantTerms

KEYS = {hash_key("tml-alice"): "alice", hash_key("tml-bob"): "bob"}


def test_training_is_shared_by_weight() -> None:
    fairness = Fairness({"alice": 3, "bob": 1}.__getitem__)
    turns = []
    for _ in range(80):
        first = fairness.waiting(["alice", "bob"])[0]
        fairness.charge(first, 100)
        turns.append(first)
    assert turns.count("alice") == 60


def test_a_lower_class_gets_what_higher_ones_leave_and_a_turn_now_and_then() -> None:
    fairness = Fairness(class_of=lambda tenant: {"demo": 0, "nightly": 2}.get(tenant, 1))

    def served(tenants: list[str], turns: int) -> Counter[str]:
        found: Counter[str] = Counter()
        for _ in range(turns):
            first = fairness.waiting(tenants)[0]
            fairness.charge(first, 100)
            found[first] += 1
        return found

    everybody = served(["nightly", "bob", "demo", "alice"], 180)
    assert everybody == {"demo": 160, "alice": 5, "bob": 5, "nightly": 10}
    assert served(["nightly", "bob", "alice"], 34) == {"alice": 16, "bob": 16, "nightly": 2}
    assert served(["nightly"], 5) == {"nightly": 5}
    newcomer = served(["alice", "bob", "carol", "nightly"], 30)
    assert newcomer["carol"] <= 11, "who comes is level with its own class"


async def test_samples_of_a_lower_class_wait_while_higher_ones_are_drawn(tmp_path: Path) -> None:
    terms = {"nightly": Terms(priority="batch")}
    async with served(tmp_path, terms=terms) as api:
        pool, lanes = api.core.engines.get("fake/model"), api.core.sampling.lanes
        await pool.ready()

        def enter(tenant: str) -> Ride:
            held = SamplingParams(max_tokens=999)  # the fake engine holds it
            return lanes.enter(
                tenant, pool, ServedWeights(), Sample("", "", np.zeros(1, np.int32), held)
            )

        first = enter("alice")
        for _ in range(9):
            enter("nightly")
        held = api.engine.current.held
        await until(lambda: len(held) == 5)
        assert sorted(each.lane for each in held) == ["alice", *["nightly"] * 4]
        lanes.cancel(first)
        await until(lambda: len(held) == 9)


async def until(happened: Callable[[], bool]) -> None:
    async with asyncio.timeout(20):
        while not happened():
            await asyncio.sleep(0.005)


async def test_a_heavier_tenant_has_more_lanes_in_the_engine(tmp_path: Path) -> None:
    """An engine gives equal parts to lanes."""
    engine = FakeEngine()
    terms = {"alice": Terms(weight=2)}
    async with served(tmp_path, engine, keys=KEYS, terms=terms) as api:
        for tenant in (api, api.as_tenant("tml-bob")):
            session = await tenant.session()
            body = {"session_id": session, "sampling_session_seq_id": 0, "base_model": "fake/model"}
            sampler = (await tenant.post("create_sampling_session", body))["sampling_session_id"]
            for number in range(4):
                asked = {
                    "sampling_session_id": sampler,
                    "seq_id": number,
                    "prompt": {"chunks": [{"type": "encoded_text", "tokens": [1, 2]}]},
                    "sampling_params": {"max_tokens": 2},
                    "num_samples": 1,
                }
                await tenant.result((await tenant.post("asample", asked))["request_id"])
    lanes = [command.lane for command in engine.current.seen if isinstance(command, Sample)]
    assert [len(set(lanes[:4])), len(set(lanes[4:]))] == [2, 1]


async def test_a_tenant_has_its_own_limits(tmp_path: Path) -> None:
    terms = {"alice": Terms(limits={"runs_per_tenant": 1, "sessions_per_tenant": 1})}
    async with served(tmp_path, keys=KEYS, terms=terms) as api:
        session, bob = await api.session(), api.as_tenant("tml-bob")
        await api.model(session)
        body = {
            "session_id": session,
            "model_seq_id": 1,
            "base_model": "fake/model",
            "lora_config": {"rank": 8},
        }
        refused = await api.post("create_model", body, expect=429)
        assert "1 training runs are live" in refused["detail"]
        await api.post("create_session", {"tags": [], "user_metadata": {}}, expect=429)
        theirs = await bob.session()
        await bob.model(theirs)
        await bob.model(theirs, 1)


def test_the_file_in_the_home_is_followed(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    terms = TenantTerms(tmp_path, look_s=0.0)
    settings = Settings(tmp_path, (), terms=terms)
    assert settings.weight_of("alice") == 1
    file = tmp_path / "tenants.json"
    file.write_text(json.dumps({"alice": {"weight": 4, "runs_per_tenant": 2}}))
    assert settings.weight_of("alice") == 4
    assert settings.limits_of("alice").runs_per_tenant == 2
    assert settings.limits_of("bob") == settings.limits
    file.write_text("{")
    assert settings.weight_of("alice") == 4
    assert "what it said before still counts" in caplog.text
    file.unlink()
    assert settings.weight_of("alice") == 1


@pytest.mark.parametrize(
    "text",
    [
        "[]",
        '{"alice": {"weight": 0}}',
        '{"alice": {"weight": 17}}',
        '{"alice": {"weight": true}}',
        '{"alice": {"body_bytes": 5}}',
        '{"alice": {"runs_per_tenant": 1.5}}',
    ],
)
def test_wrong_terms_are_refused_by_name(tmp_path: Path, text: str) -> None:
    (tmp_path / "tenants.json").write_text(text)
    with pytest.raises(KeyProblem, match=r"tenants\.json"):
        TenantTerms(tmp_path, look_s=0.0)
