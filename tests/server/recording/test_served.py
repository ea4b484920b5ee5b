"""Histories and events of a real `tinkex serve`: both SDKs, a power cut, a resumed stream."""

from __future__ import annotations

import http.client
import json
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit
from urllib.request import Request, urlopen

import pytest

import tinkex
from support import official_trainer
from support.clients import quick_config
from support.ending import ended_well
from support.live_server import LiveServer, live_server
from tinkex.client.events.bus import EventBus
from tinkex.types import AdamParams, Datum, ModelInput, SamplingParams

MODEL = "tinkex/tiny-llama"
STEPS = 4
KEY = "tml-crash"  # as the official trainer's


def read(server: LiveServer, path: str, key: str = KEY) -> Any:
    request = Request(f"{server.url}/api/dashboard/{path}", headers={"x-api-key": key})
    with urlopen(request, timeout=30) as answer:
        return json.load(answer)


def complete(server: LiveServer, model: str) -> None:
    """Ask for a completion as the openai package does."""
    body = json.dumps({"model": model, "prompt": "Red sky", "max_tokens": 3}).encode()
    headers = {"authorization": f"Bearer {KEY}", "content-type": "application/json"}
    with urlopen(Request(f"{server.url}/v1/completions", body, headers), timeout=60) as answer:
        assert json.load(answer)["choices"]


def only_run(server: LiveServer) -> str:
    return str(read(server, "runs")["runs"][0]["run"])


def train_with_ours(url: str) -> list[float]:
    service = tinkex.ServiceClient.from_config(quick_config(url, KEY))
    client = service.create_lora_training_client(MODEL, rank=4, seed=7)
    return [one_step(client, step) for step in range(STEPS)]


def one_step(client: Any, number: int = 0) -> float:
    tokens = [(number + 3 * k) % 50 + 1 for k in range(12)]
    inputs = {"target_tokens": tokens[1:], "weights": [1.0] * (len(tokens) - 1)}
    datum = Datum(model_input=ModelInput.from_ints(tokens[:-1]), loss_fn_inputs=inputs)
    passed = client.forward_backward([datum] * 3, "cross_entropy")
    stepped = client.optim_step(AdamParams(learning_rate=3e-3))
    loss: float = passed.result().metrics["loss:sum"]
    stepped.result()
    return loss


def train_with_theirs(url: str) -> list[float]:
    line = [sys.executable, official_trainer.__file__, url, MODEL, str(STEPS)]
    done = subprocess.run(line, input="\n" * STEPS, capture_output=True, text=True, timeout=300)
    assert ended_well(done.returncode, official=True), done.stderr[-3000:]
    losses: list[float] = json.loads(done.stdout.splitlines()[-1])
    return losses


@pytest.mark.parametrize("train", [train_with_ours, train_with_theirs], ids=["ours", "official"])
def test_what_was_answered_is_in_the_history_after_a_power_cut(tmp_path: Path, train: Any) -> None:
    home = tmp_path / "home"
    with live_server(home, "--model", MODEL) as server:
        losses = train(server.url)
        server.process.kill()
        server.wait()
    with live_server(home, "--model", MODEL) as server:
        run = only_run(server)
        found = read(server, f"runs/{run}/history?metrics=loss:sum,learning_rate")
        assert found["points"] == STEPS
        assert found["series"]["loss:sum"]["mean"] == pytest.approx(losses, rel=1e-6)
        assert found["series"]["learning_rate"]["mean"] == [0.003] * STEPS
        examples = read(server, f"samples?run={run}")["samples"]
        assert all(each["kind"] == "datum" for each in examples)


class Stream:
    """A reader of events, as a browser's."""

    def __init__(self, server: LiveServer, last: str | None = None) -> None:
        place = urlsplit(server.url)
        self._connection = http.client.HTTPConnection(str(place.hostname), place.port, timeout=60)
        headers = {"x-api-key": KEY, **({} if last is None else {"last-event-id": last})}
        self._connection.request("GET", "/api/dashboard/events", headers=headers)
        self._answer = self._connection.getresponse()
        assert self._answer.status == 200
        assert self._answer.headers["content-type"].startswith("text/event-stream")

    def events(self) -> Iterator[tuple[str | None, str, Any]]:
        """(id, event, data) as they come."""
        fields: dict[str, str] = {}
        while line := self._answer.readline().decode():
            name, _, value = line.rstrip("\n").partition(": ")
            if name:
                fields[name] = value
            elif fields:
                yield fields.get("id"), fields["event"], json.loads(fields["data"])
                fields = {}

    def until(self, event: str, **facts: Any) -> tuple[str | None, Any]:
        """The first event of a kind with these facts."""
        for number, kind, data in self.events():
            if kind == event and facts.items() <= data.items():
                return number, data
        raise AssertionError(f"the stream ended before {event}")

    def close(self) -> None:
        self._answer.close()
        self._connection.close()


def test_a_stream_tells_of_steps_as_they_end_and_is_resumed_where_it_broke(tmp_path: Path) -> None:
    home = tmp_path / "home"
    with live_server(home, "--model", MODEL) as server:
        service = tinkex.ServiceClient.from_config(quick_config(server.url, KEY))
        client = service.create_lora_training_client(MODEL, rank=4)
        stream = Stream(server)
        stream.until("hello")
        one_step(client)
        last, point = stream.until("point", done=True)
        assert (point["step"], point["run"]) == (1, client.model_id)
        assert point["values"]["loss"] > 0
        _, now = stream.until("now")
        assert now["engines"][0]["model"] == MODEL
        stream.close()
        one_step(client, 1)
        client.save_state("kept").result()
        resumed = Stream(server, last)
        _, missed = resumed.until("point", done=True)
        assert missed["step"] == 2
        _, saved = resumed.until("checkpoint")
        assert saved["path"].endswith("/weights/kept")
        assert server.stop(signal.SIGINT) == 0, "an open stream must not keep a server from ending"
        resumed.close()
    with live_server(home, "--model", MODEL) as server:
        after = Stream(server, last)
        number, kind, _ = next(after.events())
        assert kind == "reset"
        assert number != last
        after.close()


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveServer]:
    """For tests that leave it as it is."""
    with live_server(tmp_path_factory.mktemp("shared") / "home", "--model", MODEL) as server:
        yield server


def test_a_mirror_gets_the_steps_that_the_server_keeps(shared: LiveServer) -> None:
    bus = EventBus()
    heard: list[tuple[str, int, Mapping[str, float]]] = []
    detach = tinkex.attach_mirror(lambda *record: heard.append(record), bus=bus)
    service = tinkex.ServiceClient.from_config(quick_config(shared.url, KEY, events=bus))
    client = service.create_lora_training_client(MODEL, rank=4)
    for step in range(STEPS):
        one_step(client, step)
    detach()
    kept = read(shared, f"runs/{client.model_id}/history")["series"]
    assert [(run, step) for run, step, _ in heard] == [
        (client.model_id, step) for step in range(1, STEPS + 1)
    ]
    for mirrored, name in (
        ("loss", "loss"),
        ("optim/grad_norm", "grad_norm"),
        ("learning_rate", "learning_rate"),
    ):
        values = [record[2][mirrored] for record in heard]
        assert kept[name]["mean"] == pytest.approx(values, rel=1e-5)


def test_samples_are_kept_with_their_texts_and_of_each_run_apart(shared: LiveServer) -> None:
    service = tinkex.ServiceClient.from_config(quick_config(shared.url, KEY))
    client = service.create_lora_training_client(MODEL, rank=4)
    one_step(client)
    prompt = ModelInput.from_ints(list(b"Red sky"))
    params = SamplingParams(max_tokens=5, stop=[])
    trained = client.save_weights_and_get_sampling_client()
    answer = trained.sample(prompt, 2, params).result()
    service.create_sampling_client(base_model=MODEL).sample(prompt, 1, params).result()
    kept = [each for each in read(shared, "samples")["samples"] if each["kind"] == "sample"]
    assert [each["run"] for each in kept] == [None, client.model_id, client.model_id]
    newest = kept[1]
    assert (newest["of"], newest["index"], newest["finish_reason"]) == (2, 1, "length")
    assert newest["output"]["tokens"] == list(answer.sequences[1].tokens)
    assert newest["output"]["logprobs"] == pytest.approx(
        list(answer.sequences[1].logprobs or ()), rel=1e-4
    )
    assert newest["prompt"]["text"] == "Red sky"
    assert "".join(newest["output"]["pieces"]) == newest["output"]["text"]
    assert len(newest["output"]["pieces"]) == 5
    assert read(shared, f"samples?run={client.model_id}")["samples"][0]["id"] == newest["id"]
    assert not read(shared, "samples", key="tml-bob")["samples"]
    path = client.save_weights_for_sampler("kept").result().path
    complete(shared, path)
    asked = read(shared, f"samples?run={client.model_id}")["samples"][0]
    assert (asked["weights"], asked["step"]) == (path, 1)
    assert asked["prompt"]["text"] == "Red sky"
