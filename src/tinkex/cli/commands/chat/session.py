"""A chat from its first line to its last: messages are answered, lines with a slash obeyed."""

from __future__ import annotations

from pathlib import Path

from tinkex.cli.commands.chat.answering import Answering
from tinkex.cli.commands.chat.conversation import Conversation
from tinkex.cli.commands.chat.typed import Typed
from tinkex.cli.errors import CliError, explain, explain_work
from tinkex.cli.line.context import CommandContext
from tinkex.cli.line.invoke import write_error
from tinkex.cli.listings.checkpoint_path import SCHEME, check_path
from tinkex.cli.listings.naming import short_id

HELP = """\
/system TEXT   how the model shall answer from now on; - for no such text
/clear         forget what was said
/retry         another answer to the last message
/save [FILE]   keep the conversation as JSON, or as text: a .md or .txt FILE
/help          this
/exit          leave, as does Ctrl-D
Ctrl-C stops an answer. Lines between two lines of \"\"\" are one message.
A message that begins with a slash begins with two."""
_TIMED_OUT = "Timed out while awaiting an answer"


class Session:
    def __init__(
        self, context: CommandContext, conversation: Conversation, answering: Answering
    ) -> None:
        self._context, self._conversation, self._answering = context, conversation, answering
        self._typed = Typed(context)
        self._open = True

    def run(self) -> None:
        """Until the input ends or the user leaves. In a pipe, the first failure ends it."""
        if self._typed.is_person:
            self._context.note(f"Talking with {_shortly(self._conversation.model)}")
            self._context.note("/help lists what you can type; Ctrl-C stops an answer.\n")
        for line in self._typed:
            if line is None:
                self._context.note("\nCtrl-D or /exit leaves.")
            elif line.strip():
                self._take(line)
            if not self._open:
                return
        if self._typed.is_person:
            self._context.note("")

    def _take(self, line: str) -> None:
        try:
            if line.startswith("/") and not line.startswith("//"):
                self._obey(*_parts(line))
            else:
                self._answer(line[1:] if line.startswith("//") else line)
        except Exception as error:
            explained = explain_work(error, "Sampling", _TIMED_OUT)
            if not self._typed.is_person:
                raise explained from error
            write_error(explain(explained), self._context.streams.err)

    def _answer(self, text: str) -> None:
        conversation = self._conversation
        conversation.ask(text)
        try:
            answer = self._answering.answer(conversation.encoded(self._answering.tokenizer))
        except BaseException:
            conversation.take_back()
            raise
        if answer.text or answer.reason != "interrupted":
            conversation.answered(answer.text)
        if answer.reason == "interrupted":
            if not self._typed.is_person:
                raise KeyboardInterrupt
            self._context.note("(stopped)")
        if answer.reason == "length":
            self._context.narrate("(cut at the limit: tinkex chat --max-tokens N for more)")
        if self._typed.is_person:
            self._context.streams.out.write("\n")
            self._context.streams.out.flush()

    def _obey(self, word: str, rest: str) -> None:
        match word:
            case "/help" | "/?":
                self._context.note(HELP)
            case "/exit" | "/quit" | "/bye":
                self._open = False
            case "/clear":
                self._conversation.turns.clear()
                self._context.note("Forgotten.")
            case "/system":
                self._set_system(rest)
            case "/retry":
                self._retry()
            case "/save":
                self._save(rest)
            case _:
                raise CliError(f"There is no {word}: /help lists what there is")

    def _set_system(self, text: str) -> None:
        conversation = self._conversation
        if text:
            conversation.system = None if text == "-" else text
        self._context.note(f"System: {conversation.system or '(none)'}")

    def _retry(self) -> None:
        text = self._conversation.take_back()
        if text is None:
            raise CliError("There is no message to answer again")
        self._answer(text)

    def _save(self, name: str) -> None:
        path = Path(name or f"chat-{self._context.deps.now():%Y%m%d-%H%M%S}.json").expanduser()
        self._conversation.save(path)
        self._context.note(f"Saved to {path}")


def _shortly(model: str) -> str:
    """A path with its run's id shortened, as every command takes it."""
    if not model.startswith(SCHEME):
        return model
    path = check_path(model)
    return f"{SCHEME}{short_id(path.training_run_id)}/{path.kind}/{path.name}"


def _parts(line: str) -> tuple[str, str]:
    word, _, rest = line.strip().partition(" ")
    return word, rest.strip()
