"""`tinkex run sample`, also reached as `tinkex run --prompt ...`."""

from __future__ import annotations

import io
from enum import Enum
from functools import cached_property
from pathlib import Path
from typing import Any

import click

from tinkex.cli.commands.run.choice import chosen_model
from tinkex.cli.commands.run.prompt import Prompt, read_prompt
from tinkex.cli.commands.run.samples import Samples
from tinkex.cli.commands.run.streaming import CUT_SHORT, NoStreams, Pace, stream_sample
from tinkex.cli.errors import CliError, explain_work
from tinkex.cli.line.context import CommandContext
from tinkex.cli.line.options import command
from tinkex.cli.terminal.output import Output
from tinkex.cli.whole_file import write_whole

DEFAULT_MAX_TOKENS = 256
_TIMED_OUT = "Timed out while awaiting sampling"


@command
@click.option("--base-model", metavar="MODEL", help="The base model to sample from.")
@click.option("--model-path", metavar="PATH", help="Saved weights: tinker://RUN/sampler_weights/X")
@click.option("--prompt", metavar="TEXT", help="The prompt; '-' reads it from stdin.")
@click.option(
    "--prompt-file",
    metavar="FILE",
    help='A file with the prompt: text, or JSON token ids ([1, 2] or {"tokens": [1, 2]}).',
)
@click.option("--chat", is_flag=True, help="Put the prompt into the model's chat template.")
@click.option(
    "--max-tokens",
    type=click.IntRange(min=1),
    default=DEFAULT_MAX_TOKENS,
    show_default=True,
    help="The most tokens to sample.",
)
@click.option("--temperature", type=click.FloatRange(min=0), default=1.0, show_default=True)
@click.option("--top-k", type=int, default=-1, show_default=True, help="-1 considers all tokens.")
@click.option("--top-p", type=click.FloatRange(0, 1), default=1.0, show_default=True)
@click.option("--seed", type=int, help="The same seed gives the same sample.")
@click.option("--stop", multiple=True, metavar="TEXT", help="Where to stop; may be repeated.")
@click.option("--num-samples", type=click.IntRange(min=1), default=1, show_default=True)
@click.option(
    "--stream/--no-stream",
    default=None,
    help="Print the text as it comes: what a terminal gets from a server that can.",
)
@click.option("--with-text", is_flag=True, help="Add the decoded text to the JSON.")
@click.option(
    "-o",
    "--output",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Write the result to this file.",
)
def sample(
    context: CommandContext,
    base_model: str | None,
    model_path: str | None,
    prompt: str | None,
    prompt_file: str | None,
    chat: bool,
    num_samples: int,
    stream: bool | None,
    with_text: bool,
    output: Path | None,
    **sampling: Any,
) -> Output | None:
    """Sample text from a base model or from saved weights.

    Without a model it takes the only one the server has, or this machine's default with --local.

    Example: tinkex run sample --local --prompt "Hello" --max-tokens 20
    """
    given = read_prompt(context, prompt, prompt_file, chat)
    streaming = _streaming(context, stream, num_samples, output)
    context.narrate_start()
    model = chosen_model(context, base_model, model_path)
    try:
        result = _sample(context, model, given, chat, num_samples, streaming, with_text, sampling)
    except Exception as error:
        raise explain_work(error, "Sampling", _TIMED_OUT) from error
    if output is None or result is None:
        return result
    _save(context, result, output)
    return None


class Streaming(Enum):
    """Whether the text is printed as it comes; PREFERRED where the server can."""

    NO = "no"
    PREFERRED = "preferred"
    YES = "yes"


def _streaming(
    context: CommandContext, asked: bool | None, num_samples: int, output: Path | None
) -> Streaming:
    plain = num_samples == 1 and not context.is_json and output is None
    if asked and not plain:
        raise click.UsageError(
            "--stream prints one sample as text: leave out --json, --num-samples and --output."
        )
    if asked is None and plain and context.streams.out.isatty():
        return Streaming.PREFERRED
    return Streaming.YES if asked else Streaming.NO


def _sample(
    context: CommandContext,
    model: dict[str, str],
    prompt: Prompt,
    chat: bool,
    num_samples: int,
    streaming: Streaming,
    with_text: bool,
    sampling: dict[str, Any],
) -> Samples | None:
    from tinkex.types import ModelInput, SamplingParams

    client = context.within(
        lambda: context.service.create_sampling_client(**model, retry_config=_no_retries())
    )
    tokenizer = LazyTokenizer(client)
    tokens = ModelInput.from_ints(context.within(lambda: prompt.encode(tokenizer, chat)))
    params = SamplingParams(**{**sampling, "stop": list(sampling["stop"]) or None})
    context.narrate("Starting sampling...")
    pace = Pace()
    if streaming is not Streaming.NO:
        try:
            stream_sample(context, client, tokenizer, tokens, params, pace)
            return None
        except NoStreams:
            if streaming is Streaming.YES:
                raise
    response = context.wait(client.sample(tokens, num_samples, params))
    count = len(response.sequences)
    sampled = sum(len(sequence.tokens) for sequence in response.sequences)
    plural = "" if count == 1 else "s"
    context.narrate(f"Sampling complete ({count} sequence{plural}, {pace.said(sampled)})")
    if any(sequence.stop_reason == "length" for sequence in response.sequences):
        context.narrate(CUT_SHORT)
    return Samples(response, tokenizer, with_text)


class LazyTokenizer:
    """A sampler's tokenizer, loaded when text is first read or written: token ids need none."""

    def __init__(self, client: Any) -> None:
        self._client = client

    @cached_property
    def _loaded(self) -> Any:
        return self._client.get_tokenizer()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._loaded, name)


def _no_retries() -> Any:
    """A person is waiting: an error is shown, not retried behind their back."""
    from tinkex import RetryConfig

    return RetryConfig(enable_retry_logic=False)


def _save(context: CommandContext, result: Samples, output: Path) -> None:
    text = io.StringIO()
    result.write(text, context.format)
    try:
        write_whole(output, text.getvalue())
    except OSError as error:
        raise CliError(f"Failed to write {output}", f"Details: {error}") from error
    context.note(f"Saved to {output}")
