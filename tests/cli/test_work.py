"""`run sample`: what it asks of the SDK, prints and writes."""

from __future__ import annotations

import io
import json
import re
import threading
from concurrent.futures import Future
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from support.command_line import (
    CommandLine,
    FakeClients,
    Ran,
    done,
    failed,
    status_error,
)
from support.fake_service import Service
from support.json_shape import mismatches, shapes
from tinkex import types
from tinkex.client.errors import RequestFailedError, TinkerError


def sample(*flags: str, service: Service | None = None, typed: str = "", url: str = "") -> Ran:
    clients = FakeClients(service=service or Service(), address=url or "http://x")
    return CommandLine(clients, typed=typed)("run", "sample", *flags)


PROMPT = ("--base-model", "m", "--prompt", "Hello")


def test_samples_are_printed_one_after_the_other() -> None:
    ran = sample(*PROMPT)
    assert ran.code == 0, ran.err
    assert ran.out == (
        "Sample 1:\nHi\nstop_reason=stop | avg_logprob=-0.750\n\nSample 2:\n!\nstop_reason=length\n"
    )
    said = ran.err.splitlines()
    assert said[0] == "Starting sampling..."
    assert re.fullmatch(r"Sampling complete \(2 sequences, 3 tokens, [\d.]+ tokens/s\)", said[1])
    assert said[2:] == ["It was cut at the limit: --max-tokens N for more"]


def test_json_holds_tokens_and_text_only_if_asked() -> None:
    plain = json.loads(sample(*PROMPT, "--json").out)
    assert list(plain) == ["sequences", "prompt_logprobs", "topk_prompt_logprobs", "type"]
    first = {"tokens": [72, 105], "logprobs": [-0.5, -1.0], "stop_reason": "stop"}
    assert plain["sequences"][0] == first
    with_text = json.loads(sample(*PROMPT, "--json", "--with-text").out)
    assert mismatches(plain, shapes()["run sample"]) == []
    assert mismatches(with_text, shapes()["run sample"]) == []
    assert with_text["sequences"][0] == {**first, "text": "Hi"}


def test_every_option_reaches_the_server() -> None:
    service = Service()
    flags = [
        "--max-tokens",
        "3",
        "--temperature",
        "0",
        "--top-k",
        "5",
        "--top-p",
        "0.5",
        "--seed",
        "9",
        "--num-samples",
        "2",
    ]
    ran = sample(*PROMPT, *flags, "--stop", "a", "--stop", "b", service=service)
    assert ran.code == 0, ran.err
    ((prompt, count, params),) = service.sampler.asked
    assert (prompt, count) == ("Hello", 2)
    assert params == types.SamplingParams(
        max_tokens=3, temperature=0, top_k=5, top_p=0.5, seed=9, stop=["a", "b"]
    )


def test_chat_applies_the_template() -> None:
    service = Service()
    sample(*PROMPT, "--chat", service=service)
    assert service.sampler.asked[0][0] == "<user>Hello<bot>"


@pytest.mark.parametrize("flag", ["--prompt", "--prompt-file"])
def test_a_dash_reads_the_prompt_from_stdin(flag: str) -> None:
    service = Service()
    sample("--base-model", "m", flag, "-", service=service, typed="two\nlines\n")
    assert service.sampler.asked[0][0] == "two\nlines"


@pytest.mark.parametrize(
    ("content", "prompt"),
    [
        ("text\n", "text\n"),
        ("[72, 105]", "Hi"),
        ('{"tokens": [72, 105]}', "Hi"),
        ("[1.5]", "[1.5]"),
        ("[true]", "[true]"),
        ('{"other": [1]}', '{"other": [1]}'),
        ("[]", "[]"),
    ],
)
def test_a_prompt_file_is_token_ids_or_text(tmp_path: Path, content: str, prompt: str) -> None:
    service = Service()
    file = tmp_path / "prompt"
    file.write_text(content)
    assert sample("--base-model", "m", "--prompt-file", str(file), service=service).code == 0
    assert service.sampler.asked[0][0] == prompt


@pytest.mark.parametrize(
    ("flags", "code", "words"),
    [
        (["--base-model", "m"], 2, "Missing prompt. Provide --prompt or --prompt-file"),
        ([*PROMPT, "--prompt-file", "f"], 2, "--prompt and --prompt-file cannot both be provided"),
        ([*PROMPT, "--model-path", "tinker://a/sampler_weights/b"], 2, "not both"),
        (["--model-path", "/tmp/m", "--prompt", "x"], 2, "must be a tinker:// path"),
        (["--base-model", "m", "--prompt-file", "/none"], 1, "Failed to read prompt file /none"),
        ([*PROMPT, "--stream", "--json"], 2, "--stream prints one sample"),
        ([*PROMPT, "--max-tokens", "0"], 2, "--max-tokens"),
    ],
)
def test_what_cannot_be_sampled_is_explained(flags: list[str], code: int, words: str) -> None:
    ran = sample(*flags)
    assert ran.code == code
    assert words in ran.err
    assert ran.out == ""


@pytest.mark.parametrize("flags", [["--local"], []])
def test_the_only_model_of_a_server_needs_no_name(flags: list[str]) -> None:
    service = Service()
    ran = sample("--prompt", "x", *flags, service=service)
    assert ran.code == 0, ran.err
    assert service.made == [("sampler", {"base_model": "here/default"})]
    assert "Using here/default" in ran.err


def test_one_of_several_models_must_be_named() -> None:
    service = Service()
    models = [types.SupportedModel(model_name=name) for name in ("a/one", "b/two")]
    found = types.GetServerCapabilitiesResponse(supported_models=models)
    service.get_server_capabilities = lambda: found
    ran = sample("--prompt", "x", service=service)
    assert ran.code == 2
    assert (
        "Missing --base-model (or --model-path)\nThe server has 2 models: a/one, b/two" in ran.err
    )


def test_there_is_a_limit_where_none_is_given() -> None:
    service = Service()
    assert sample(*PROMPT, service=service).code == 0
    assert service.sampler.asked[0][2].max_tokens == 256


def test_samples_go_to_a_file_whole(tmp_path: Path) -> None:
    target = tmp_path / "new" / "out.json"
    ran = sample(*PROMPT, "--json", "-o", str(target))
    assert ran.code == 0
    assert ran.out == ""
    assert json.loads(target.read_text())["type"] == "sample"
    assert [path.name for path in target.parent.iterdir()] == ["out.json"]


@pytest.mark.parametrize(
    ("error", "headline"),
    [
        (status_error(422), "Sampling failed. Please check your inputs: boom"),
        (
            status_error(500),
            "Sampling failed due to server or transient error. Consider retrying: boom",
        ),
        (
            RequestFailedError("too long", "r", types.RequestErrorCategory.User),
            "Sampling failed. Please check your inputs: too long",
        ),
        (status_error(401), "Authentication failed"),
        (TimeoutError(), "Timed out while awaiting sampling"),
    ],
    ids=lambda value: type(value).__name__,
)
def test_a_failed_sample_says_whose_turn_it_is(error: Exception, headline: str) -> None:
    ran = sample(*PROMPT, service=Service(answers=failed(error)))
    assert ran.code == 1
    assert ran.err.splitlines()[-1 if headline not in ran.err else 1].strip()
    assert f"Error: {headline}" in ran.err


def test_waiting_ends_with_the_timeout() -> None:
    ran = sample(*PROMPT, "--timeout", "20", service=Service(answers=Future()))
    assert ran.code == 1
    assert "Timed out while awaiting sampling" in ran.err


def test_text_that_cannot_be_decoded_does_not_hide_the_sample() -> None:
    odd = types.SampledSequence("stop", "a", _tokens_list=[-5])
    ran = sample(*PROMPT, service=Service(answers=done(types.SampleResponse([odd]))))
    assert ran.code == 0
    assert "[decode error: " in ran.out


def test_a_model_cannot_drive_the_terminal() -> None:
    odd = types.SampledSequence("stop", "a", _tokens_list=[27, *b"[2J", 10, 9, 33])
    clients = FakeClients(service=Service(answers=done(types.SampleResponse([odd]))))
    shown = CommandLine(clients, terminal=True)("run", "sample", *PROMPT, "--no-stream").out
    assert shown.splitlines()[1:3] == ["\\x1b[2J", "\t!"]
    assert "\x1b[2J" in CommandLine(clients)("run", "sample", *PROMPT).out


def test_streamed_text_waits_for_whole_characters() -> None:
    from tinkex.cli.commands.run.streaming import TextSoFar

    class Bytes:
        def decode(self, tokens: list[int], **_options: bool) -> str:
            return bytes(tokens).decode("utf-8", errors="replace")

    text = TextSoFar(Bytes())
    pieces = [text.add([byte]) for byte in "né!".encode()]
    assert pieces == ["n", "", "é", "!"]
    assert text.add([0xC3]) == ""
    assert text.rest() == "\ufffd"


def test_streamed_text_lacks_nothing_where_a_folder_has_spaces_taken_out(tmp_path: Path) -> None:
    from tinkex.cli.commands.run.streaming import TextSoFar
    from tinkex.engine.builtin import tiny_tokenizer
    from tinkex.text.light_tokenizer import Tokenizer

    tiny_tokenizer.write_tokenizer(tmp_path, template="", max_length=64)
    file = tmp_path / "tokenizer_config.json"
    asked = json.loads(file.read_text()) | {"clean_up_tokenization_spaces": True}
    file.write_text(json.dumps(asked))
    text = TextSoFar(Tokenizer(tmp_path, "t"))
    assert "".join(text.add([byte]) for byte in b"it 's . ") + text.rest() == "it 's . "


def streaming(pieces: Any) -> Service:
    service = Service()
    service.sampler.sample_stream = lambda _prompt, _params: pieces
    return service


def test_text_is_printed_as_it_comes() -> None:
    pieces = [SimpleNamespace(tokens=[ord(c)], stop_reason=None) for c in "Hey"]
    pieces.append(SimpleNamespace(tokens=[], stop_reason="stop"))
    ran = sample(*PROMPT, "--stream", service=streaming(iter(pieces)))
    assert (ran.code, ran.out) == (0, "Hey\n")
    pace = r"3 tokens, first after [\d.]+ s, [\d.]+ tokens/s"
    assert re.search(rf"complete \(stop_reason=stop, {pace}\)\n$", ran.err)


def test_a_server_without_streams_is_said_to_be_one() -> None:
    def refuse() -> Any:
        raise TinkerError("This server does not stream samples: use sample().")
        yield

    ran = sample(*PROMPT, "--stream", service=streaming(refuse()))
    assert ran.code == 1
    assert "Error: This server does not stream samples" in ran.err
    assert ran.err.endswith("Leave out --stream\n")


def test_a_terminal_gets_a_stream_without_asking_where_the_server_has_one() -> None:
    pieces = [SimpleNamespace(tokens=[ord("!")], stop_reason="stop")]
    clients = FakeClients(service=streaming(iter(pieces)))
    ran = CommandLine(clients, terminal=True)("run", "sample", *PROMPT)
    assert (ran.code, ran.out) == (0, "!\n")

    def refuse() -> Any:
        raise TinkerError("This server does not stream samples: use sample().")
        yield

    clients = FakeClients(service=streaming(refuse()))
    ran = CommandLine(clients, terminal=True)("run", "sample", *PROMPT)
    assert ran.code == 0, ran.err
    assert "Sample 1:\nHi\n" in ran.out
    assert "does not stream" not in ran.err


@pytest.mark.parametrize("streamed", [False, True])
def test_the_timeout_bounds_what_blocks_too(streamed: bool) -> None:
    """A queue that is paused holds the creation of a model, a sampler or the next token."""
    forever = threading.Event()
    service = Service()
    if streamed:
        stuck = streaming(iter(forever.wait, None))
        ran = sample(*PROMPT, "--stream", "--timeout", "50", service=stuck)
    else:
        service.create_sampling_client = lambda **_: forever.wait()
        ran = sample(*PROMPT, "--timeout", "50", service=service)
    forever.set()
    assert ran.code == 1
    assert "Timed out while awaiting sampling" in ran.err


def test_a_closed_stdout_is_no_failure() -> None:
    class Closed(io.StringIO):
        def write(self, text: str) -> int:
            raise BrokenPipeError

    from tinkex.cli.main import run

    result = run(["version"], stdout=Closed(), stderr=io.StringIO())
    assert result.exit_code == 0


@pytest.mark.parametrize("flags", [(), ("--chat",)])
def test_a_prompt_that_is_no_text_is_called_so(flags: tuple[str, ...]) -> None:
    ran = sample("--base-model", "m", "--prompt", "\udcff", *flags)
    assert "What was given is not UTF-8 text" in ran.err
    assert ran.code == 1
