"""`tinkex chat`: what it talks with, prints and keeps, and what can be typed beside messages."""

from __future__ import annotations

import json
import stat
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from support.command_line import (
    CommandLine,
    FakeClients,
    FakeRest,
    Ran,
    Terminal,
    checkpoint,
    done,
)
from support.json_shape import mismatches, shapes
from tinkex import types
from tinkex.cli.commands.chat.session import HELP
from tinkex.cli.commands.chat.typed import _keep
from tinkex.cli.terminal.waiting import Waiting
from tinkex.cli.terminal.wrapping import WordWrap
from tinkex.client.errors import RequestFailedError, TinkerError


class Tokenizer:
    """One token per character; a template that shows its roles."""

    def decode(self, tokens: list[int], **_options: bool) -> str:
        return "".join(chr(token) for token in tokens)

    def apply_chat_template(self, messages: Any, **_options: Any) -> list[int]:
        text = "".join(f"<{m['role']}>{m['content']}" for m in messages)
        return [ord(character) for character in text]


class Sampler:
    """Answers with the next of its answers; an exception is raised where it stands in one."""

    def __init__(self, answers: list[Any], streams: bool = True) -> None:
        self._answers, self._streams = answers, streams
        self.asked: list[tuple[str, types.SamplingParams]] = []

    def get_tokenizer(self) -> Tokenizer:
        return Tokenizer()

    def sample_stream(self, prompt: Any, params: types.SamplingParams) -> Iterator[Any]:
        if not self._streams:
            raise TinkerError("This server does not stream samples: use sample().")
        self.asked.append((Tokenizer().decode(prompt.to_ints()), params))
        for piece in self._answers.pop(0):
            if isinstance(piece, BaseException):
                raise piece
            yield SimpleNamespace(tokens=[ord(c) for c in piece], stop_reason=None)
        yield SimpleNamespace(tokens=[], stop_reason="stop")

    def sample(self, prompt: Any, num_samples: int, params: types.SamplingParams) -> Any:
        self.asked.append((Tokenizer().decode(prompt.to_ints()), params))
        tokens = [ord(c) for c in "".join(self._answers.pop(0))]
        sequence = types.SampledSequence("length", "a", _tokens_list=tokens)
        return done(types.SampleResponse([sequence]))


class Service:
    def __init__(self, *answers: Any, streams: bool = True) -> None:
        self.sampler = Sampler(list(answers), streams)
        self.made: list[dict[str, str]] = []

    def get_server_capabilities(self) -> Any:
        models = [types.SupportedModel(model_name="here/default")]
        return types.GetServerCapabilitiesResponse(supported_models=models)

    def create_sampling_client(self, retry_config: Any, **model: str) -> Sampler:
        self.made.append(model)
        return self.sampler


def talk(service: Service, typed: str, *flags: str, person: bool = False, rest: Any = None) -> Ran:
    clients = FakeClients(service=service, rest=rest or FakeRest())
    line = CommandLine(clients, typed=typed, interactive=person, terminal=person)
    return line("chat", *flags)


def test_lines_of_a_pipe_are_messages_and_only_answers_come_out() -> None:
    service = Service(["Hel", "lo"], ["Bye."])
    ran = talk(service, "hi\n\nand then?\n", "some/model")
    assert (ran.code, ran.out, ran.err) == (0, "Hello\nBye.\n", "")
    prompts = [prompt for prompt, _ in service.sampler.asked]
    assert prompts == ["<user>hi", "<user>hi<assistant>Hello<user>and then?"]
    assert service.made == [{"base_model": "some/model"}]


def test_options_shape_the_draw() -> None:
    service = Service(["x"])
    flags = ("--max-tokens", "7", "--temperature", "0.2", "--top-p", "0.5", "--seed", "3")
    talk(service, "hi\n", "m", *flags)
    params = service.sampler.asked[0][1]
    assert (params.max_tokens, params.temperature) == (7, 0.2)
    assert (params.top_p, params.seed, params.stop) == (0.5, 3, None)


def test_without_a_model_it_talks_with_what_was_saved_last() -> None:
    saved = [
        checkpoint(1),
        checkpoint(9, kind="sampler_weights"),
        checkpoint(3, kind="sampler_weights"),
    ]
    service = Service(["x"])
    talk(service, "hi\n", rest=FakeRest(saved))
    assert service.made == [{"model_path": "tinker://run-1/sampler_weights/0003"}]


def test_what_it_talks_with_is_said_in_80_columns() -> None:
    path = "tinker://0a8deb14-8fab-48a0-bf50-19489d38f4f2:train:0/sampler_weights/demo"
    ran = talk(Service(["x"]), "hi\n", path, person=True)
    assert ran.err.startswith("Talking with tinker://0a8deb14:0/sampler_weights/demo\n")


def test_with_nothing_saved_it_talks_with_the_only_model() -> None:
    service = Service(["x"])
    talk(service, "hi\n")
    assert service.made == [{"base_model": "here/default"}]


def test_with_no_server_and_no_key_it_talks_on_this_machine() -> None:
    clients = FakeClients(service=Service(["x"]), rest=FakeRest())
    clients.has_credentials = lambda connection: False
    CommandLine(clients, typed="hi\n")("chat")
    assert {connection.base_url for connection in clients.connections} == {"local"}


def test_json_is_the_whole_conversation_at_the_end() -> None:
    ran = talk(Service(["Hello"]), "hi\n", "m", "--json", "--system", "Be kind.")
    found = json.loads(ran.out)
    assert mismatches(found, shapes()["chat"]) == []
    assert [m["role"] for m in found["messages"]] == ["system", "user", "assistant"]
    assert ran.err == ""


def test_the_system_message_can_be_set_seen_and_taken_away() -> None:
    service = Service(["a"], ["b"], ["c"])
    typed = "/system Be brief.\none\n/system\n/system -\ntwo\n"
    ran = talk(service, typed, "m")
    assert service.sampler.asked[0][0] == "<system>Be brief.<user>one"
    assert service.sampler.asked[1][0] == "<user>one<assistant>a<user>two"
    assert ran.err.splitlines() == ["System: Be brief.", "System: Be brief.", "System: (none)"]


def test_clear_forgets_and_retry_answers_again() -> None:
    service = Service(["a"], ["b"], ["c"])
    talk(service, "one\n/retry\n/clear\ntwo\n", "m")
    prompts = [prompt for prompt, _ in service.sampler.asked]
    assert prompts == ["<user>one", "<user>one", "<user>two"]


def test_a_conversation_is_saved_and_never_over_a_file(tmp_path: Path) -> None:
    kept, readable = tmp_path / "talk.json", tmp_path / "talk.md"
    typed = f"hi\n/save {kept}\n/save {readable}\n/save {kept}\nyes\n"
    ran = talk(Service(["Hello"], ["x"]), typed, "m", person=True)
    assert json.loads(kept.read_text()) == {
        "model": "m",
        "messages": [
            {"role": "user", "content": "hi"},
            {"role": "assistant", "content": "Hello"},
        ],
    }
    assert "**assistant**: Hello" in readable.read_text()
    assert f"Error: {kept} exists already" in ran.err


def test_an_unknown_word_is_explained_and_not_sent() -> None:
    service = Service(["x"])
    ran = talk(service, "/sytem x\n//help me\n/help\n/exit\nnever\n", "m", person=True)
    assert "There is no /sytem: /help lists what there is" in ran.err
    assert [prompt for prompt, _ in service.sampler.asked] == ["<user>/help me"]
    assert "/retry" in ran.err
    assert max(map(len, HELP.splitlines())) < 80
    assert ran.code == 0


def test_three_quotes_make_several_lines_one_message() -> None:
    service = Service(["x"])
    talk(service, '"""\none\n  two\n"""\n', "m")
    assert service.sampler.asked[0][0] == "<user>one\n  two"


def test_an_interrupted_answer_is_kept_and_the_chat_goes_on() -> None:
    service = Service(["Once upon", KeyboardInterrupt()], ["Again"])
    ran = talk(service, "tell\ngo on\n", "m", person=True)
    assert ran.code == 0
    assert "(stopped)" in ran.err
    assert service.sampler.asked[1][0] == "<user>tell<assistant>Once upon<user>go on"


def test_an_answer_stopped_before_its_first_word_is_none(tmp_path: Path) -> None:
    kept, later = tmp_path / "kept.json", tmp_path / "later.json"
    service = Service([KeyboardInterrupt()], ["Hi"], [KeyboardInterrupt()], ["Yes"])
    typed = f"tell\n/save {kept}\n/retry\nwait\nno\n/save {later}\n"
    talk(service, typed, "m", person=True)
    asked = [prompt for prompt, _ in service.sampler.asked]
    assert asked[:2] == ["<user>tell", "<user>tell"], "the question can be asked again"
    assert asked[-1] == "<user>tell<assistant>Hi<user>no", "one that was given up is forgotten"
    said = [
        [(turn["role"], turn["content"]) for turn in json.loads(file.read_text())["messages"]]
        for file in (kept, later)
    ]
    assert said[0] == [("user", "tell")]
    assert said[1] == [("user", "tell"), ("assistant", "Hi"), ("user", "no"), ("assistant", "Yes")]


def test_a_failed_answer_is_explained_and_leaves_the_conversation_as_it_was() -> None:
    error = RequestFailedError("max_tokens: too many", "id", types.RequestErrorCategory.User)
    service = Service([error], ["fine"])
    ran = talk(service, "long\nshort\n", "m", person=True)
    assert "max_tokens: too many" in ran.err
    assert service.sampler.asked[1][0] == "<user>short"
    assert talk(Service([error]), "long\nshort\n", "m").code == 1, "a pipe ends with the failure"


def test_a_server_without_streams_answers_at_once() -> None:
    ran = talk(Service(["whole"], streams=False), "hi\n", "m")
    assert ran.out == "whole\n"
    assert "(cut at the limit" in ran.err


def test_what_drives_a_terminal_does_not_reach_it() -> None:
    ran = talk(Service(["\x1b[2Jgone"]), "hi\n", "m", person=True)
    assert "\x1b" not in ran.out


def test_a_model_without_a_template_is_explained(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any, **__: Any) -> None:
        raise ValueError("no template")

    monkeypatch.setattr(Tokenizer, "apply_chat_template", refuse)
    ran = talk(Service(), "hi\n", "m")
    assert ran.code == 1
    assert "This model has no usable chat template" in ran.err


def test_history_is_for_its_user_alone(tmp_path: Path) -> None:
    import readline

    path = tmp_path / "cache" / "chat-history"
    _keep(readline, path)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


@pytest.mark.parametrize("cut", [1, 2, 5, 1000])
def test_words_are_wrapped_the_same_however_they_come(cut: int) -> None:
    text = "Captain Marigold keeps the lighthouse.\n\n  code  stays as it is, however long\nend "
    wrap, said = WordWrap(20), ""
    for begin in range(0, len(text), cut):
        said += wrap.add(text[begin : begin + cut])
    said += wrap.end()
    assert said == (
        "Captain Marigold\nkeeps the\nlighthouse.\n\n  code  stays as it is, however long\nend"
    )


def test_a_word_longer_than_a_line_is_not_held_back() -> None:
    wrap = WordWrap(10)
    assert wrap.add("漢字" * 10) == "漢字" * 10


def test_an_answer_that_takes_its_time_shows_that_it_is_waited_for() -> None:
    terminal = Terminal()
    slow = Waiting(terminal, 0.0)
    slow._timer.join(10.0)
    assert terminal.getvalue() == "..."
    slow.over()
    slow.over()
    assert terminal.getvalue() == "...\r\x1b[K"
    quick = Waiting(terminal, 60.0)
    quick.over()
    assert not quick._timer.is_alive() or quick._timer.finished.is_set()
    Waiting(None).over()
    assert terminal.getvalue() == "...\r\x1b[K"
