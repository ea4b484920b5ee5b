"""Who owns a home's files sees all of it; over HTTP a key sees what is its own."""

from __future__ import annotations

import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

import tinkex
from support.live_server import LiveServer, live_server
from tinkex.server.tenancy.tenants import Tenants, hash_key

MODEL = "tinkex/tiny-llama"


@contextmanager
def reader(base_url: str) -> Iterator[tinkex.RestClient]:
    rest = tinkex.RestClient(base_url=base_url, api_key="tml-local")
    yield rest
    rest.holder.close()


def test_only_the_owner_needs_no_known_key() -> None:
    tenants = Tenants({hash_key("tml-known"): "alice"})
    assert tenants.identify("tml-known", is_owner=True) == "alice"
    assert tenants.identify("tml-other", is_owner=True).startswith("key-")
    with pytest.raises(Exception, match="unknown"):
        tenants.identify("tml-other")
    with pytest.raises(Exception, match="malformed"):
        tenants.identify("other", is_owner=True)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveServer]:
    home = tmp_path_factory.mktemp("owner") / "home"
    with live_server(home, "--model", MODEL) as server, pytest.MonkeyPatch.context() as patch:
        patch.setenv("TINKEX_HOME", str(home))
        yield server


@pytest.fixture(scope="module")
def path(server: LiveServer) -> str:
    """A checkpoint that another key has made over HTTP."""
    with tinkex.ServiceClient(base_url=server.url, api_key="tml-anything") as service:
        training = service.create_lora_training_client(MODEL, rank=4)
        return training.save_state("one").result().path


@pytest.mark.slow
def test_local_lists_describes_and_downloads_what_any_key_made(path: str) -> None:
    run_id = path.removeprefix("tinker://").partition("/")[0]
    with reader("local") as rest:
        runs = rest.list_training_runs().result()
        assert [run.training_run_id for run in runs.training_runs] == [run_id]
        assert runs.cursor.total_count == 1
        assert rest.get_training_run(run_id).result().training_run_id == run_id
        assert len(rest.list_checkpoints(run_id).result().checkpoints) == 1
        assert [c.tinker_path for c in rest.list_user_checkpoints().result().checkpoints] == [path]
        sessions = rest.list_sessions().result().sessions
        assert run_id.partition(":")[0] in sessions
        url = rest.get_checkpoint_archive_url_from_tinker_path(path).result().url
        assert url.startswith("file://")
        assert rest.get_weights_info_by_tinker_path(path).result().base_model == MODEL


@pytest.mark.slow
def test_local_samples_and_trains_on_from_what_any_key_made(path: str) -> None:
    with tinkex.ServiceClient(base_url="local", api_key="tml-local") as service:
        sampler = service.create_sampling_client(model_path=path)
        prompt = tinkex.ModelInput.from_ints([1, 2])
        asked = tinkex.SamplingParams(max_tokens=2)
        assert sampler.sample(prompt, 1, asked).result().sequences
        training = service.create_training_client_from_state(path)
        assert training.save_state("two").result().path
        with pytest.warns(FutureWarning, match="load_state is deprecated"):
            training.load_state(path).result()


@pytest.mark.slow
def test_over_http_a_key_sees_nothing_of_another(server: LiveServer, path: str) -> None:
    run_id = path.removeprefix("tinker://").partition("/")[0]
    with (
        tinkex.ServiceClient(base_url=server.url, api_key="tml-local") as service,
        reader(server.url) as rest,
    ):
        seen = rest.list_training_runs().result().training_runs
        assert run_id not in [run.training_run_id for run in seen]
        for asked in (
            lambda: rest.get_training_run(run_id).result(),
            lambda: rest.get_checkpoint_archive_url_from_tinker_path(path).result(),
            lambda: service.create_sampling_client(model_path=path),
            lambda: service.create_training_client_from_state(path),
        ):
            with pytest.raises(tinkex.NotFoundError):
                asked()


@pytest.mark.slow
def test_no_header_of_a_request_makes_its_sender_the_owner(server: LiveServer, path: str) -> None:
    run_id = path.removeprefix("tinker://").partition("/")[0]
    forged = {"Host": "local:80", "X-Forwarded-Host": "local:80", "X-Forwarded-For": "unix"}
    request = urllib.request.Request(
        f"{server.url}/api/v1/training_runs/{run_id}", headers={**forged, "X-API-Key": "tml-other"}
    )
    with pytest.raises(urllib.error.HTTPError, match="404") as caught:
        urllib.request.urlopen(request, timeout=60)
    caught.value.close()


@pytest.mark.slow
def test_the_owner_may_delete_what_any_key_made(path: str) -> None:
    with reader("local") as rest:
        rest.delete_checkpoint_from_tinker_path(path).result()
        left = [c.tinker_path for c in rest.list_user_checkpoints().result().checkpoints]
        assert path not in left
