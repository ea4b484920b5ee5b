"""A configuration is an explicit value: precedence, checks, and nothing secret in its repr."""

import re
from pathlib import Path

import pytest

import tinkex
from tinkex.client.settings.config import (
    DEFAULT_BASE_URL,
    Config,
    Timeout,
    log_level_from_environment,
)


def resolve(environ: dict[str, str] | None = None, **given: object) -> Config:
    return Config.resolve(environ=environ or {}, **given)


def test_defaults() -> None:
    config = resolve()
    assert config.base_url == DEFAULT_BASE_URL
    assert config.api_key is None
    assert config.telemetry is True
    assert config.tags == frozenset()
    assert config.timeout == Timeout(60.0, connect=5.0)


def test_the_caller_wins_over_tinkex_over_tinker() -> None:
    both = {"TINKER_BASE_URL": "http://a", "TINKEX_BASE_URL": "http://b"}
    assert resolve({"TINKER_BASE_URL": "http://a"}).base_url == "http://a"
    assert resolve(both).base_url == "http://b"
    assert resolve(both, base_url="http://c").base_url == "http://c"
    assert resolve({"TINKER_API_KEY": "tml-a"}, api_key="tml-b").api_key == "tml-b"


def test_everything_the_environment_can_say() -> None:
    config = resolve(
        {
            "TINKER_API_KEY": "tml-a",
            "TINKER_PROJECT_ID": "p",
            "TINKER_TAGS": "x,y,x",
            "TINKER_TELEMETRY": "No",
            "TINKER_FEATURE_GATES": "g",
            "CLOUDFLARE_ACCESS_CLIENT_ID": "id",
            "CLOUDFLARE_ACCESS_CLIENT_SECRET": "cf-secret",
            "HTTPS_PROXY": "http://proxy:1",
            "NO_PROXY": "localhost",
            "TINKEX_CACHE": "/cache",
            "HF_HUB_OFFLINE": "1",
        }
    )
    assert (config.api_key, config.project_id) == ("tml-a", "p")
    assert config.tags == {"x", "y"}
    assert config.telemetry is False
    assert config.feature_gates == {"g"}
    assert dict(config.headers) == {
        "CF-Access-Client-Id": "id",
        "CF-Access-Client-Secret": "cf-secret",
    }
    assert (config.proxy, config.no_proxy) == ("http://proxy:1", "localhost")
    assert config.cache_directory == Path("/cache")
    assert config.offline is True


def test_empty_values_count_as_unset() -> None:
    config = resolve({"TINKER_BASE_URL": "", "TINKER_API_KEY": "", "TINKER_PROJECT_ID": ""})
    assert config == resolve()


def test_urls_are_normalised_and_keep_their_path() -> None:
    assert resolve(base_url="HTTP://Host:80/a/B/").base_url == "http://host:80/a/B"


@pytest.mark.parametrize("url", ["example.com", "localhost:8000", "ftp://x", "//x", "http://"])
def test_a_url_without_scheme_or_host_is_refused_with_the_fix(url: str) -> None:
    with pytest.raises(ValueError, match=r"base_url: expected http://"):
        resolve(base_url=url)


@pytest.mark.parametrize("url", ["127.0.0.1:8000", "localhost:8000", "gpu-box:8000/prefix"])
def test_an_address_without_its_scheme_is_completed_in_the_message(url: str) -> None:
    with pytest.raises(ValueError, match=rf"Did you mean http://{url}\?"):
        resolve(base_url=url)


@pytest.mark.parametrize("key", ["abc", "sk-123", "tml-with space", "tml-line\nbreak", "tml-é"])
def test_a_key_that_cannot_be_one_is_refused_without_being_shown(key: str) -> None:
    with pytest.raises(tinkex.TinkerError, match="API key") as caught:
        resolve(api_key=key)
    assert key not in str(caught.value)


def test_a_bad_key_in_the_environment_yields_to_a_credential_command() -> None:
    command = {"TINKER_API_KEY": "bad", "TINKER_CREDENTIAL_CMD": "echo tml-x"}
    config = resolve(command)
    assert config.api_key is None
    assert config.credential_command == "echo tml-x"
    with pytest.raises(tinkex.TinkerError, match="TINKER_API_KEY"):
        resolve({"TINKER_API_KEY": "bad"})


def test_the_embedded_server_needs_no_key() -> None:
    config = resolve(base_url="local")
    assert config.is_local
    assert config.api_key == "tml-local"


def test_nothing_secret_in_the_repr() -> None:
    config = resolve(
        {"TINKER_CREDENTIAL_CMD": "print-secret", "HF_TOKEN": "hf-secret"},
        api_key="tml-secret",
        headers={"X-API-Key": "tml-secret2"},
        proxy="http://u:secret@p",
    )
    assert "secret" not in repr(config)


def test_given_headers_join_those_of_the_environment() -> None:
    config = resolve({"CLOUDFLARE_ACCESS_CLIENT_ID": "id"}, headers={"A": "b"})
    assert dict(config.headers) == {"CF-Access-Client-Id": "id", "A": "b"}


def test_timeouts_have_the_official_constructor() -> None:
    httpx = pytest.importorskip("httpx")
    for args, kwargs in [
        ((5.0,), {}),
        ((None,), {}),
        ((60.0,), {"connect": 5.0}),
        (((1.0, 2.0, 3.0, 4.0),), {}),
        ((), {"connect": 1.0, "read": 2.0, "write": 3.0, "pool": 4.0}),
    ]:
        assert Timeout(*args, **kwargs).as_dict() == httpx.Timeout(*args, **kwargs).as_dict()
        assert repr(Timeout(*args, **kwargs)) == repr(httpx.Timeout(*args, **kwargs))
    with pytest.raises(ValueError, match="read, write, pool"):
        Timeout(connect=1.0)


def test_the_log_level_is_debug_or_info() -> None:
    assert log_level_from_environment({"TINKER_LOG": "debug"}) == "debug"
    assert log_level_from_environment({"TINKER_LOG": "loud"}) is None


def test_nothing_else_of_the_library_reads_the_environment() -> None:
    package = Path(str(tinkex.__file__)).parent
    sources = [p for floor in ("client", "types", "wire") for p in (package / floor).rglob("*.py")]
    readers = [p.name for p in sources if re.search(r"\bos\.(environ|getenv)", p.read_text())]
    assert readers == ["config.py"]
