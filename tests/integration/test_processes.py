"""A SamplingClient in other processes: pickled, forked, or named by a handle."""

import base64
import json
import multiprocessing
import os
import pickle
import subprocess
import sys
from pathlib import Path

import pytest

import tinkex
from support import sampling_worker
from support.clients import PARAMS, prompt, service_for
from support.protocol_server import ProtocolServer
from support.streams import DONE, PIECES, START, lines


@pytest.fixture
def server():
    with ProtocolServer() as running:
        yield running


def run_workers(client: tinkex.SamplingClient, first: int, count: int) -> list[list[int]]:
    pickled = base64.b64encode(pickle.dumps(client)).decode()
    environment = {**os.environ, "PYTHONPATH": str(Path(sampling_worker.__file__).parents[1])}
    done = subprocess.run(
        [sys.executable, sampling_worker.__file__, pickled, str(first), str(count)],
        capture_output=True,
        text=True,
        timeout=120,
        env=environment,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    answers: list[list[int]] = json.loads(done.stdout)
    return answers


def test_a_pickled_client_samples_in_another_process(server: ProtocolServer) -> None:
    with service_for(server) as service:
        sampler = service.create_sampling_client(base_model="acme/tiny")
        assert run_workers(sampler, 7, 1) == [[7, 8]]
    number = server.asked("/asample")[0].body["seq_id"]
    assert number >= 10**9
    assert number % 10**9 == 0
    assert server.count("/create_session") == 1
    assert server.count("/client/config") == 1


@pytest.mark.slow
def test_fifty_processes_share_one_sampler(server: ProtocolServer) -> None:
    server.flags["sample_join_sampling_session"] = True
    with service_for(server) as service:
        sampler = service.create_sampling_client(base_model="acme/tiny")
        answers = [answer for i in range(0, 50, 10) for answer in run_workers(sampler, i, 10)]
    assert answers == [[i, i + 1] for i in range(50)]
    clones = {call.body["seq_id"] // 10**9 for call in server.asked("/asample")}
    assert len(clones) == 50
    assert 0 not in clones
    assert server.count("/join_sampling_session") == 50


def test_a_process_that_never_closes_its_client_exits_quietly(server: ProtocolServer) -> None:
    script = (
        "import sys, tinkex; s = tinkex.ServiceClient(base_url=sys.argv[1], api_key='tml-x');"
        "c = s.create_sampling_client(base_model='acme/tiny');"
        "p = tinkex.ModelInput.from_ints([1]); q = tinkex.SamplingParams(max_tokens=1);"
        "futures = [c.sample(p, 1, q) for _ in range(100)]; print('last line')"
    )
    done = subprocess.run(
        [sys.executable, "-c", script, server.url], capture_output=True, text=True, timeout=60
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "last line\n", "")
    assert server.count("/finish") == 0, "only an explicit close finishes a session"


def test_a_forked_child_samples_although_the_parent_already_did(server: ProtocolServer) -> None:
    with service_for(server) as service:
        sampler = service.create_sampling_client(base_model="acme/tiny")
        assert sampler.sample(prompt(1), 1, PARAMS).result(timeout=30).sequences
        reader, writer = multiprocessing.Pipe(duplex=False)
        pid = os.fork()
        if pid == 0:
            try:
                writer.send(sampling_worker.sample_once(sampler, 9))
            except BaseException as error:
                writer.send(repr(error))
            os._exit(0)
        assert reader.poll(60), "the forked child hangs"
        assert reader.recv() == [9, 10]
        os.waitpid(pid, 0)
        assert sampler.sample(prompt(2), 1, PARAMS).result(timeout=30).sequences
    numbers = [call.body["seq_id"] for call in server.asked("/asample")]
    assert numbers[0] == 0
    assert numbers[1] >= 10**9
    assert numbers[2] == 1


def test_a_forked_child_streams_although_the_parent_already_did(server: ProtocolServer) -> None:
    with service_for(server) as service:
        sampler = service.create_sampling_client(base_model="acme/tiny")
        assert sampler.sample(prompt(1), 1, PARAMS).result(timeout=30).sequences
        server.fail("/asample_stream", lines(START, *PIECES, DONE))
        reader, writer = multiprocessing.Pipe(duplex=False)
        pid = os.fork()
        if pid == 0:
            try:
                pieces = list(sampler.stream(prompt(9), PARAMS))
                writer.send([token for piece in pieces for token in piece.tokens])
            except BaseException as error:
                writer.send(repr(error))
            os._exit(0)
        assert reader.poll(60), "the forked child hangs"
        assert reader.recv() == [1, 2, 3]
        os.waitpid(pid, 0)


def test_a_handle_names_the_sampler_without_the_key(server: ProtocolServer) -> None:
    with service_for(server, "tml-secret-key", headers={"X-Team": "a"}) as service:
        sampler = service.create_sampling_client(base_model="acme/tiny")
        handle = sampler.get_sampler_handle()
        assert b"secret" not in base64.urlsafe_b64decode(handle)
        same = tinkex.SamplingClient.from_sampler_handle(handle, api_key="tml-other")
        assert same.sample(prompt(3), 1, PARAMS).result(timeout=30).sequences[0].tokens[0] == 3
        same.holder.close()
    request = next(r for r in server.requests if r.path.endswith("/asample"))
    assert request.headers["x-api-key"] == "tml-other"
    assert request.headers["x-team"] == "a"


def test_a_bad_handle_is_refused() -> None:
    with pytest.raises(ValueError, match="get_sampler_handle"):
        tinkex.SamplingClient.from_sampler_handle("not a handle")


def test_the_other_clients_say_that_they_stay_here(server: ProtocolServer) -> None:
    with service_for(server) as service:
        training = service.create_lora_training_client("acme/tiny")
        for client in (service, training):
            with pytest.raises(TypeError, match="SamplingClient"):
                pickle.dumps(client)


def test_nothing_secret_shows_in_what_is_pickled(server: ProtocolServer) -> None:
    with service_for(server, "tml-secret-key") as service:
        sampler = service.create_sampling_client(base_model="acme/tiny")
        for shown in (
            repr(sampler),
            repr(sampler.__reduce__()),
            repr(service),
            repr(service.config),
        ):
            assert "secret" not in shown
