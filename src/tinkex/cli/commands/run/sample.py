"""`tinkex run sample`, also reached as `tinkex run --prompt ...`."""

from __future__ import annotations

import io
from functools import cached_property
from pathlib import Path
from typing import Any

import click

from tinkex.cli.commands.run.prompt import Prompt, read_prompt
from tinkex.cli.commands.run.samples import Samples
from tinkex.cli.commands.run.streaming import stream_sample
from tinkex.cli.context import CommandContext
from tinkex.cli.errors import CliError, explain_work
from tinkex.cli.options import command
from tinkex.cli.output import Output
from tinkex.cli.whole_file import write_whole

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
@click.option("--max-tokens", type=click.IntRange(min=1), help="The most tokens to sample.")
@click.option("--temperature", type=click.FloatRange(min=0), default=1.0, show_default=True)
@click.option("--top-k", type=int, default=-1, show_default=True, help="-1 considers all tokens.")
@click.option("--top-p", type=click.FloatRange(0, 1), default=1.0, show_default=True)
@click.option("--seed", type=int, help="The same seed gives the same sample.")
@click.option("--stop", multiple=True, metavar="TEXT", help="Where to stop; may be repeated.")
@click.option("--num-samples", type=click.IntRange(min=1), default=1, show_default=True)
@click.option("--stream", is_flag=True, help="Print the text as it comes (our server only).")
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
    stream: bool,
    with_text: bool,
    output: Path | None,
    **sampling: Any,
) -> Output | None:
    """Sample text from a base model or from saved weights.

    Example: tinkex run sample --local --prompt "Hello" --max-tokens 20
    """
    given = read_prompt(context, prompt, prompt_file, chat)
    _check_combination(context, stream, num_samples, output)
    model = _chosen_model(context, base_model, model_path)
    try:
        result = _sample(context, model, given, chat, num_samples, stream, with_text, sampling)
    except Exception as error:
        raise explain_work(error, "Sampling", _TIMED_OUT) from error
    if output is None or result is None:
        return result
    _save(context, result, output)
    return None


def _check_combination(
    context: CommandContext, stream: bool, num_samples: int, output: Path | None
) -> None:
    if stream and (context.is_json or num_samples > 1 or output is not None):
        raise click.UsageError(
            "--stream prints one sample as text: leave out --json, --num-samples and --output."
        )


def _chosen_model(
    context: CommandContext, base_model: str | None, model_path: str | None
) -> dict[str, str]:
    """The model to sample, as the SDK's argument; this machine's default with `--local`."""
    if base_model is not None and model_path is not None:
        raise click.UsageError("Give --base-model or --model-path, not both.")
    if model_path is not None and not model_path.startswith("tinker://"):
        raise CliError(
            f"--model-path must be a tinker:// path, not {model_path!r}",
            next_step="Next: tinkex checkpoint list",
        )
    if model_path is not None:
        return {"model_path": model_path}
    if base_model is not None:
        return {"base_model": base_model}
    if context.connection.base_url != "local" and not context.is_embedded:
        raise click.UsageError("Missing --base-model (or --model-path). See: tinkex model list")
    return {"base_model": _local_default(context)}


def _local_default(context: CommandContext) -> str:
    models = context.service.get_server_capabilities().supported_models
    if not models or models[0].model_name is None:
        raise CliError("The local server offers no model", next_step="Next: tinkex models")
    context.narrate(f"Using {models[0].model_name}")
    return str(models[0].model_name)


def _sample(
    context: CommandContext,
    model: dict[str, str],
    prompt: Prompt,
    chat: bool,
    num_samples: int,
    stream: bool,
    with_text: bool,
    sampling: dict[str, Any],
) -> Samples | None:
    from tinkex.types import ModelInput, SamplingParams

    client = context.service.create_sampling_client(**model, retry_config=_no_retries())
    tokenizer = LazyTokenizer(client)
    tokens = ModelInput.from_ints(prompt.encode(tokenizer, chat))
    params = SamplingParams(**{**sampling, "stop": list(sampling["stop"]) or None})
    context.narrate("Starting sampling...")
    if stream:
        stream_sample(context, client, tokenizer, tokens, params)
        return None
    response = context.wait(client.sample(tokens, num_samples, params))
    count = len(response.sequences)
    context.narrate(f"Sampling complete ({count} sequence{'' if count == 1 else 's'})")
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
