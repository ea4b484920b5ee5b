"""From exception to headline, details and next step."""

from __future__ import annotations

import errno
import io
import json
from pathlib import Path

import pytest

from support.command_line import (
    CommandLine,
    FakeClients,
    FakeRest,
    Ran,
    Terminal,
    failed,
    status_error,
)
from tinkex.cli.errors import CliError, explain_work
from tinkex.cli.line.invoke import write_error
from tinkex.cli.main import run
from tinkex.cli.outside.clients import SdkClients
from tinkex.client.errors import (
    APIConnectionError,
    APIError,
    APITimeoutError,
    RequestFailedError,
    TinkerError,
)
from tinkex.types import RequestErrorCategory
from tinkex.wire.errors import WireError
from tinkex.wire.json_text import dumps

HEADLINES = {
    400: "Invalid request",
    401: "Authentication failed",
    402: "Billing issue",
    403: "Permission denied",
    404: "Resource not found",
    409: "API error (status 409)",
    410: "API error (status 410)",
    418: "API error (status 418)",
    422: "Invalid data provided",
    429: "Rate limit exceeded",
    500: "Internal server error",
    503: "Internal server error",
}


def run_list(error: Exception, *flags: str) -> Ran:
    rest = FakeRest()
    rest.list_training_runs = lambda **_: failed(error)
    return CommandLine(FakeClients(rest))("run", "list", *flags)


@pytest.mark.parametrize("status", HEADLINES)
def test_every_status_has_its_headline_and_the_servers_words(status: int) -> None:
    ran = run_list(status_error(status))
    lines = ran.err.splitlines()
    assert ran.code == 1
    assert ran.out == ""
    assert lines[0] == f"Error: {HEADLINES[status]}"
    assert lines[1] == "Details: boom"
    assert len(lines) == 3, "no hint"


@pytest.mark.parametrize(
    ("error", "headline"),
    [
        (APITimeoutError(None), "Request timeout"),
        (TimeoutError(), "Request timeout"),
        (APIConnectionError(None), "Connection failed"),
        (APIError("odd", None, body=None), "API error occurred"),
        (TinkerError("key must start with tml-"), "Configuration error: key must start with tml-"),
        (
            RequestFailedError("rank too high", "r", RequestErrorCategory.User),
            "The server could not complete the request",
        ),
        (FileNotFoundError(2, "No such file", "/a/b"), "Could not use /a/b: No such file"),
        (KeyError("x"), "Unexpected error occurred: 'x'"),
    ],
    ids=lambda value: type(value).__name__,
)
def test_errors_without_a_status_have_headlines_too(error: Exception, headline: str) -> None:
    ran = run_list(error)
    assert ran.code == 1
    assert ran.err.splitlines()[0] == f"Error: {headline}"
    assert "Traceback" not in ran.err


def test_a_connection_error_names_the_address_it_tried() -> None:
    assert "(tried http://x)" in run_list(APIConnectionError(None)).err


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ('{"detail": [{"loc": ["body", "rank"], "msg": "too high"}]}', "rank: too high"),
        ('{"error": {"message": "no quota"}}', "no quota"),
        ('{"message": "plain"}', "plain"),
        ("<html>502 <b>Bad Gateway</b></html>", "502 Bad Gateway"),
        ('{"odd": 1}', "the server answered 502"),
        ('{"detail": "red \\u001b[31m"}', "red \\x1b[31m"),
    ],
)
def test_a_body_of_any_shape_is_read_as_a_sentence(body: str, said: str) -> None:
    from tinkex.client.error_details import ResponseInfo
    from tinkex.client.errors import status_error as make

    ran = run_list(make(ResponseInfo(502), body.encode()))
    assert ran.err.splitlines()[1] == f"Details: {said}"
    assert "{" not in ran.err


@pytest.mark.parametrize(
    ("cause", "said"),
    [
        ("client error (Connect): tcp connect error: Connection refused (os error 111)", "refused"),
        ("client error (Connect): dns error: no records: Query { a: b }", "host name is not known"),
        ("client error (Connect): received corrupt message of type InvalidContentType", "TLS"),
        ("client error (SendRequest): connection reset (os error 104)", "connection reset"),
    ],
)
def test_a_chain_of_causes_is_told_by_its_end(cause: str, said: str) -> None:
    chain = f"Connection error: Request failed: error sending request for url (http://x): {cause}"
    err = run_list(APIConnectionError(None, chain)).err
    assert said in err
    assert "os error" not in err
    assert "client error" not in err


def test_a_full_disk_is_told_as_one_and_not_as_a_fault_of_ours() -> None:
    full = OSError(errno.ENOSPC, "No space left on device")
    err = run_list(full).err
    assert err.startswith("Error: No space left on the disk for what was to be written\n")
    assert "Unexpected" not in err
    embedded = TinkerError("The embedded server cannot start: No space left on device")
    embedded.__cause__ = full
    assert explain_work(embedded, "Sampling", "too long") is embedded, "no word of trying again"


def test_what_to_type_next_keeps_the_server_of_this_line() -> None:
    assert (
        "tinkex run list --local, or tinkex checkpoint list --local"
        in run_list(status_error(404), "--local").err
    )
    there = run_list(status_error(404), "--base-url", "http://gpu:8000").err
    assert "tinkex run list --base-url http://gpu:8000, or" in there
    refused = run_list(status_error(401), "--base-url", "http://gpu:8000").err
    assert "Next: tinkex auth login --base-url http://gpu:8000, or set" in refused
    assert "Next: tinkex auth login, or set" in run_list(status_error(401), "--local").err


def test_programs_get_errors_they_can_read() -> None:
    ran = run_list(status_error(404), "--json")
    assert (ran.code, ran.out) == (1, "")
    assert json.loads(ran.err)["error"] == {
        "message": "Resource not found",
        "details": "boom",
        "next_step": "Check the id. Next: tinkex run list, or tinkex checkpoint list",
        "status_code": 404,
        "exit_code": 1,
    }


@pytest.mark.parametrize(
    "line",
    [
        ("run", "list", "--bogus", "--json"),
        ("--json", "run", "bogus"),
        ("-f", "json", "bogus"),
        ("run", "info", "-fjson"),
        ("checkpoint", "set-ttl", "tinker://r/weights/x", "--format=json"),
    ],
)
def test_wrong_usage_is_an_error_programs_can_read_too(line: tuple[str, ...]) -> None:
    ran = CommandLine(FakeClients(FakeRest()))(*line)
    assert ran.code == 2
    assert json.loads(ran.err)["error"]["exit_code"] == 2


@pytest.mark.parametrize(
    "line",
    [
        ("checkpoint", "info", "nonsense"),
        ("checkpoint", "delete"),
        ("checkpoint", "delete", "nonsense", "-y"),
        ("checkpoint", "delete", "--run-id", "r", "--type", "x", "-y"),
        ("checkpoint", "delete", "--run-id", "r", "--before", "x", "-y"),
        ("checkpoint", "set-ttl", "tinker://r/weights/x"),
        ("checkpoint", "set-ttl", "tinker://r/weights/x", "--ttl", "soon"),
        ("run", "sample", "--model-path", "x", "--prompt", "y"),
        ("run", "list", "--timeout", "0"),
        ("run", "stop", "run-1"),
        ("--api-key",),
    ],
)
def test_wrong_usage_exits_with_two(line: tuple[str, ...]) -> None:
    ran = CommandLine(FakeClients(FakeRest()))(*line)
    assert (ran.code, ran.out) == (2, "")


def test_a_traceback_only_when_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    assert "Traceback" in run_list(KeyError("x"), "--verbose").err
    monkeypatch.setenv("TINKEX_DEBUG", "1")
    assert "Traceback" in run_list(KeyError("x")).err


def test_a_server_that_cannot_start_here_says_why_in_its_own_words() -> None:
    from tinkex.server.storage.home import Holder, HomeTaken

    taken = HomeTaken(Path("/h"), Holder(7, "http://127.0.0.1:8000"))
    wrapped = TinkerError("The embedded server cannot start")
    wrapped.__cause__ = taken
    words = f"The server embedded in tinkex cannot start: {taken}"
    assert "/h is in use by process 7" in words
    for error in (taken, wrapped):
        assert run_list(error).err.startswith(f"Error: {words}\n")


def test_a_missing_key_names_the_ways_to_one(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["run", "list"]).exit_code == 1
    err = capsys.readouterr().err
    assert err.startswith("Error: Configuration error: No API key is configured\n")
    for way in ("--local", "tinkex serve", "tinkex auth login", "TINKER_API_KEY"):
        assert way in err


def test_a_long_error_is_broken_between_words_on_a_terminal_and_nowhere_in_a_pipe(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("COLUMNS", "40")
    error = CliError("one two three " * 6, "Details: " + "four five six " * 6, "Next: " + "x " * 40)
    terminal, pipe = Terminal(), io.StringIO()
    write_error(error, terminal)
    write_error(error, pipe)
    *told, next_step = terminal.getvalue().splitlines()
    assert max(map(len, told)) <= 40
    assert len(next_step) > 40, "a command is copied in one piece"
    assert len(pipe.getvalue().splitlines()) == 3
    assert terminal.getvalue().split() == pipe.getvalue().split()


def test_the_ways_to_a_key_fit_into_eighty_columns(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["run", "list"]).exit_code == 1
    assert max(map(len, capsys.readouterr().err.splitlines())) <= 80


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (["--api-key", "sk-secret-1"], "must start with the `tml-` prefix"),
        (["--api-key", "tml-x", "--base-url", "example.com"], "expected http://"),
    ],
)
def test_a_malformed_key_or_url_is_one_line(
    flags: list[str], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["run", "list", *flags]).exit_code == 2
    err = capsys.readouterr().err
    assert err.startswith("Error: Configuration error: ")
    assert words in err
    assert "sk-secret-1" not in err
    assert ("auth login" in err) == ("sk-secret-1" in flags)  # a wrong address needs no key


def test_a_stored_login_counts_as_a_key(tmp_path: Path) -> None:
    from tinkex.cli.outside.dependencies import Connection
    from tinkex.client.settings.credentials import JsonCredentialStore, ManualKey

    store = JsonCredentialStore(tmp_path / ".tinker" / "credentials.json")
    store.add_key("7", ManualKey(key="tml-stored", name="n"))
    assert not SdkClients().has_credentials(Connection())
    store.set_default("7")
    assert SdkClients().has_credentials(Connection())


def test_what_cannot_be_sent_because_it_is_no_text_is_called_so() -> None:
    with pytest.raises(WireError) as met:
        dumps({"name": "\udcff"})
    assert run_list(met.value).err.startswith("Error: What was given is not UTF-8 text\n")
