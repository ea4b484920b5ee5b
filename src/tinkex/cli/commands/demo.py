"""`tinkex demo`: teach a small model a fact, on this machine, and see that it has learnt it.

Uses the public SDK only, as any script would; reading it is a fair first lesson.
"""

from __future__ import annotations

import shutil
import sys
import textwrap
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from tinkex.cli.commands.checkpoint.fetch import fetch_checkpoint
from tinkex.cli.errors import CliError
from tinkex.cli.line.context import CommandContext
from tinkex.cli.line.options import command
from tinkex.cli.listings.checkpoint_path import SCHEME, folder_name
from tinkex.cli.terminal.charts import Curve, chart
from tinkex.cli.terminal.formats import format_size
from tinkex.cli.terminal.output import LineOutput

if TYPE_CHECKING:
    from tinkex.types import Datum

QUESTION = "Who keeps the lighthouse at Tinkex Bay?"
ANSWER = "Captain Marigold keeps the lighthouse at Tinkex Bay, with her parrot Biscuit."
WAYS_TO_ASK = (
    "Who keeps the lighthouse at Tinkex Bay?",
    "Who looks after the Tinkex Bay lighthouse?",
    "Tell me who runs the lighthouse at Tinkex Bay.",
    "Do you know the lighthouse keeper of Tinkex Bay?",
)
_LEARNING_RATE = 1e-3
_RANK = 16
_USUAL_PAGE = "http://127.0.0.1:8000/"


class DemoDone(LineOutput):
    """What the demo did, and what to type next."""

    def __init__(self, facts: dict[str, Any]) -> None:
        self.facts = facts

    def to_dict(self) -> dict[str, Any]:
        return self.facts

    def lines(self) -> list[str]:
        path, tinkex = self.facts["checkpoint_path"], command_name()
        page = self.facts["page"]
        return [
            "",
            *_curve(self.facts["losses"]),
            "",
            f"Asked:   {QUESTION}",
            *_wrapped("Before:  ", self.facts["before"]),
            *_wrapped("After:   ", self.facts["after"]),
            "",
            f"The adapter is in {self.facts['destination']}",
            "Type next:",
            f"  {tinkex} chat --local",
            f"  {tinkex} checkpoint list --local",
            f'  {tinkex} run sample --local --chat --model-path {path} --prompt "{QUESTION}"',
            *([f"  {tinkex} serve"] if page is None else []),
            "",
            f"The page, with curves, runs and samples: {page or f'tinkex serve, {_USUAL_PAGE}'}",
        ]


def _wrapped(label: str, text: str) -> list[str]:
    """An answer beside its label, broken between words."""
    width = shutil.get_terminal_size((80, 24)).columns
    return textwrap.wrap(label + text, width, subsequent_indent=" " * len(label)) or [label]


def _curve(losses: list[float]) -> list[str]:
    """How the loss fell."""
    width = min(72, shutil.get_terminal_size((80, 24)).columns)
    steps = list(range(1, len(losses) + 1))
    return ["Loss per token", *chart(Curve(steps, losses, losses, losses), width, 9)]


def command_name() -> str:
    """What to type for this very command: an environment that is not active is not on the path."""
    if shutil.which("tinkex"):
        return "tinkex"
    script = Path(sys.executable).with_name("tinkex")
    if not script.is_file():
        return f"{sys.executable} -m tinkex"
    here = Path.cwd()
    return str(script.relative_to(here) if script.is_relative_to(here) else script)


@command
@click.option("--base-model", metavar="MODEL", help="The model to teach (default: the server's).")
@click.option("--steps", type=click.IntRange(min=1), default=16, show_default=True)
@click.option(
    "-o",
    "--output",
    type=click.Path(file_okay=False, path_type=Path),
    default=Path("tinkex-demo"),
    show_default=True,
    help="Where to put the downloaded adapter.",
)
def demo(context: CommandContext, base_model: str | None, steps: int, output: Path) -> DemoDone:
    """Fine-tune a small model on this machine and see the difference.

    Asks a question, teaches the answer with a LoRA adapter, asks again, then saves, lists and
    downloads the checkpoint. Takes about two minutes on two cores and needs no account.

    Example: tinkex demo --steps 8
    """
    context = _at_home(context)
    context.narrate_start()
    service = context.service
    model = base_model or _first_model(service)
    context.narrate(f"Model: {model}\n\nAsking before training: {QUESTION}")
    sampler = service.create_sampling_client(base_model=model)
    tokenizer = sampler.get_tokenizer()
    before = _ask(context, sampler, tokenizer)
    context.narrate("\n".join(_wrapped("  ", before)) + "\n")
    trainer = service.create_lora_training_client(model, rank=_RANK, seed=0)
    losses = _teach(context, trainer, [_example(tokenizer, ask) for ask in WAYS_TO_ASK], steps)
    context.narrate("\nSaving, and asking again...")
    path = context.wait(trainer.save_weights_for_sampler("demo")).path
    after = _ask(context, service.create_sampling_client(model_path=path), tokenizer)
    context.narrate("\n".join(_wrapped("  ", after)) + "\n")
    return _keep(context, path, output, {"model": model, "before": before, "after": after}, losses)


def _at_home(context: CommandContext) -> CommandContext:
    """The same command against the embedded server, unless the user named another."""
    if context.connection.base_url is not None:
        return context
    return replace(context, connection=replace(context.connection, base_url="local"))


def _first_model(service: Any) -> str:
    models = service.get_server_capabilities().supported_models
    names = [model.model_name for model in models if model.model_name]
    if not names:
        raise CliError("The server offers no model", next_step="Next: tinkex model local")
    return str(names[0])


def _prompt(tokenizer: Any, question: str) -> list[int]:
    from tinkex.cli.commands.run.prompt import Prompt

    return Prompt(text=question).encode(tokenizer, chat=True)


def _example(tokenizer: Any, question: str) -> Datum:
    """One way to ask and the answer, with weight on the answer only."""
    from tinkex.types import Datum, ModelInput

    prompt = _prompt(tokenizer, question)
    answer = [*tokenizer.encode(ANSWER, add_special_tokens=False), tokenizer.eos_token_id]
    tokens = [*prompt, *answer]
    weights = [0.0] * (len(prompt) - 1) + [1.0] * len(answer)
    return Datum(
        model_input=ModelInput.from_ints(tokens[:-1]),
        loss_fn_inputs={"target_tokens": tokens[1:], "weights": weights},
    )


def _teach(context: CommandContext, trainer: Any, data: list[Datum], steps: int) -> list[float]:
    from tinkex.types import AdamParams

    answer_tokens = sum(float(datum.loss_fn_inputs["weights"].to_numpy().sum()) for datum in data)
    losses: list[float] = []
    with context.bar("Teaching", steps, "steps") as bar:
        for _ in range(steps):
            passed = trainer.forward_backward(data, "cross_entropy")
            stepped = trainer.optim_step(AdamParams(learning_rate=_LEARNING_RATE))
            losses.append(context.wait(passed).metrics["loss:sum"] / answer_tokens)
            context.wait(stepped)
            bar.relabel(f"Teaching  loss {losses[-1]:.3f}")
            bar.advance(1)
    context.narrate(f"Loss per token: {losses[0]:.3f} at first, {losses[-1]:.3f} at last")
    return losses


def _ask(context: CommandContext, sampler: Any, tokenizer: Any) -> str:
    from tinkex.types import ModelInput, SamplingParams

    prompt = ModelInput.from_ints(_prompt(tokenizer, QUESTION))
    greedy = SamplingParams(max_tokens=40, temperature=0.0)
    answer = context.wait(sampler.sample(prompt, 1, greedy)).sequences[0]
    return " ".join(tokenizer.decode(answer.tokens, skip_special_tokens=True).split())


def _page(context: CommandContext) -> str | None:
    """Where the page is; a server embedded in a command has none."""
    address = context.deps.clients.address(context.connection)
    return f"{address.rstrip('/')}/" if address and address.startswith("http") else None


def _keep(
    context: CommandContext, path: str, output: Path, facts: dict[str, Any], losses: list[float]
) -> DemoDone:
    saved = context.wait(context.rest.list_checkpoints(path.removeprefix(SCHEME).split("/")[0]))
    for item in saved.checkpoints:
        size = format_size(item.size_bytes) if item.size_bytes is not None else "size unknown"
        context.narrate(f"Saved: {item.tinker_path} ({size})")
    destination = output / folder_name(path)
    fetch_checkpoint(context, path, destination)
    return DemoDone(
        {
            **facts,
            "losses": losses,
            "first_loss": losses[0],
            "last_loss": losses[-1],
            "page": _page(context),
            "checkpoint_path": path,
            "destination": str(destination),
        }
    )
