"""`tinkex serve`: the whole server, in the foreground."""

from __future__ import annotations

import dataclasses
import math
import re
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import click

from tinkex.cli.line.context import CommandContext
from tinkex.cli.line.options import Folder, command
from tinkex.cli.outside.server_floor import require_server

if TYPE_CHECKING:
    from tinkex.server.engines.fleet import Wanted
    from tinkex.server.settings import Limits, Scaling


def _checked_device(_: click.Context, __: click.Parameter, name: str) -> str:
    """Refuses a misspelt device before anything starts."""
    if not re.fullmatch(r"auto|cpu|cuda(:\d+)?", name):
        raise click.BadParameter(f"{name!r} is not known: use auto, cpu, cuda or cuda:1")
    return name


@command
@click.option(
    "--model",
    "models",
    multiple=True,
    metavar="MODEL",
    help="A Hugging Face id, a folder or a built-in; repeatable (default: SmolLM2-135M-Instruct).",
)
@click.option(
    "--alias",
    "aliases",
    multiple=True,
    metavar="NAME=MODEL",
    help="Serve MODEL under the name NAME too; repeatable.",
)
@click.option("--host", default="127.0.0.1", show_default=True, help="The address to listen on.")
@click.option(
    "--port",
    type=click.IntRange(0, 65535),
    default=8000,
    show_default=True,
    help="The port to listen on; 0 takes a free one.",
)
@click.option(
    "--home",
    type=Folder(),
    help="Where runs and checkpoints are kept (default: $TINKEX_HOME, or ~/.tinkex).",
)
@click.option(
    "--database",
    metavar="URL",
    help="Keep the rows in PostgreSQL, postgresql://… (default: $TINKEX_DATABASE, or a file in the "
    "home). A second server with the same one waits and takes over.",
)
@click.option(
    "--objects",
    metavar="URL",
    help="Keep weights and payloads in an object store, such as s3://BUCKET/PREFIX (default: "
    "$TINKEX_OBJECTS, or files in the home). Needs the extra s3.",
)
@click.option(
    "--device",
    default="auto",
    show_default=True,
    callback=_checked_device,
    help="auto, cpu, cuda or one of several: cuda:1.",
)
@click.option(
    "--engines",
    default="auto",
    show_default=True,
    envvar="TINKEX_ENGINES",
    metavar="auto|N|MIN-MAX",
    help="Engines of each model: auto is one per GPU, and one on a CPU, where more share its "
    "threads; with MIN-MAX their number follows what there is to do (or $TINKEX_ENGINES).",
)
@click.option(
    "--scaling",
    multiple=True,
    metavar="NAME=NUMBER",
    help="When engines come and go with --engines MIN-MAX, such as shrink_s=60; repeatable. All "
    "are listed in the docs.",
)
@click.option(
    "--dtype",
    type=click.Choice(["auto", "float32", "bfloat16"]),
    default="auto",
    show_default=True,
    help="What is computed in: auto is bfloat16 on a GPU and float32 on a CPU.",
)
@click.option(
    "--base",
    type=click.Choice(["auto", "fp8", "fp8-weights"]),
    default="auto",
    show_default=True,
    help="How the base model's matrices are kept: auto is in the dtype; fp8 takes half the memory "
    "and multiplies in float8, fp8-weights multiplies in the dtype. Needs a GPU with float8.",
)
@click.option(
    "--steady",
    is_flag=True,
    help="On a GPU, give a request the same bits alone and in company, and the sampler those of "
    "the trainer: batch-invariant kernels, slower. For models without experts, linear "
    "attention or attention sinks.",
)
@click.option(
    "--log-format",
    type=click.Choice(["text", "json"]),
    default="text",
    show_default=True,
    help="How to log runs, steps, saves, refusals and engines: lines, or JSON objects.",
)
@click.option(
    "--record-samples/--no-record-samples",
    default=True,
    help="Keep some recent samples to be read on the dashboard (default), or none.",
)
@click.option("--quiet", is_flag=True, help="Log warnings and errors only.")
@click.option(
    "--limit",
    "limits",
    multiple=True,
    metavar="NAME=NUMBER",
    help="Change a limit, such as runs_per_tenant=16; repeatable. Limits are listed in the docs.",
)
@click.option(
    "--engine",
    multiple=True,
    metavar="NAME=NUMBER",
    help="Change a setting of the engines, such as kv_bytes=4000000000; repeatable. All are listed "
    "in the docs.",
)
@click.option(
    "--ray",
    metavar="auto|ADDRESS",
    help="Run the engines on a Ray cluster: the one of this machine, or the one at ADDRESS "
    "(default: $TINKEX_RAY, or none).",
)
@click.option(
    "--ray-resource",
    "ray_resources",
    multiple=True,
    metavar="NAME=NUMBER",
    help="What each engine asks Ray for, such as CPU=8, GPU=1, memory=64000000000 or one of the "
    "cluster's own; repeatable (default: what its model needs).",
)
@click.option(
    "--ray-shared",
    multiple=True,
    type=click.Path(file_okay=False, path_type=Path),
    metavar="FOLDER",
    help="A folder that is the same one on all nodes; repeatable. What engines need of others is "
    "sent to them.",
)
def serve(
    context: CommandContext,
    engines: str,
    scaling: tuple[str, ...],
    limits: tuple[str, ...],
    engine: tuple[str, ...],
    ray_resources: tuple[str, ...],
    **options: Any,
) -> None:
    """Serve the API on this machine, to the official client and to this one.

    Prints its address and models when it is ready. Ctrl-C finishes what is running and exits; a
    second one stops at once. On an address others can reach, create keys first: tinkex keys create.

    Example: tinkex serve --model Qwen/Qwen3-0.6B --port 8000
    """
    require_server()
    from tinkex.server.hosting.serve import ServeOptions
    from tinkex.server.hosting.serve import serve as serve_until_stopped

    chosen = ServeOptions(
        **options,
        engines=read_engines(engines),
        scaling=read_scaling(scaling),
        limits=read_limits(limits),
        engine=read_engine(engine),
        ray_resources=read_resources(ray_resources),
    )
    raise click.exceptions.Exit(serve_until_stopped(chosen))


def read_engines(given: str) -> Wanted:
    """How many engines; a wrong number is a usage error."""
    from tinkex.server.engines.fleet import FleetProblem, read_wanted

    try:
        return read_wanted(given)
    except FleetProblem as problem:
        raise click.BadParameter(str(problem), param_hint="--engines") from None


def read_scaling(given: tuple[str, ...]) -> Scaling:
    """When engines come and go; a wrong number is a usage error."""
    from tinkex.server.settings import Scaling

    known = {field.name: float for field in dataclasses.fields(Scaling)}
    return Scaling(**_numbers(given, known, "--scaling", "settings"))


def read_limits(given: tuple[str, ...]) -> Limits:
    """The default limits with the given ones changed; a wrong one is a usage error."""
    from tinkex.server.settings import Limits

    names = [field.name for field in dataclasses.fields(Limits)]
    known = {name: float if name.endswith("_s") else int for name in names}
    return Limits(**_numbers(given, known, "--limit", "limits"))


def read_engine(given: tuple[str, ...]) -> dict[str, Any]:
    """The engine settings that were given; a wrong one is a usage error."""
    from tinkex.server.engines.child_process import engine_numbers, engine_ranges

    noun, ranges = "settings of an engine", engine_ranges()
    chosen = _numbers(given, engine_numbers(), "--engine", noun, ranges)
    if chosen.get("sampling_share", 0.5) >= 1:
        text = f"sampling_share={chosen['sampling_share']}"
        raise click.BadParameter(f"{text!r}: give a part between 0 and 1", param_hint="--engine")
    return chosen


def read_resources(given: tuple[str, ...]) -> dict[str, float]:
    """What engines ask Ray for; a wrong one is a usage error."""
    for text in given:
        if not re.fullmatch(r"[^=]+=.*", text):
            problem = f"{text!r}: give NAME=NUMBER, such as CPU=8"
            raise click.BadParameter(problem, param_hint="--ray-resource")
    names = {text.partition("=")[0]: float for text in given}
    return _numbers(given, names, "--ray-resource", "resources")


def _numbers(
    given: tuple[str, ...],
    known: Mapping[str, type],
    option: str,
    noun: str,
    ranges: Mapping[str, tuple[int, int]] = MappingProxyType({}),
) -> dict[str, Any]:
    """NAME=NUMBER, each of a known name, and in its range or above zero."""
    numbers: dict[str, Any] = {}
    for text in given:
        name, _, number = text.partition("=")
        if name not in known:
            raise click.BadParameter(
                f"{text!r}: the {noun} are {', '.join(known)}", param_hint=option
            )
        value = _number(number, known[name], ranges.get(name))
        if value is None:
            wanted = _in_words(known[name], ranges.get(name))
            raise click.BadParameter(f"{text!r}: give {wanted}", param_hint=option)
        numbers[name] = value
    return numbers


def _number(text: str, kind: type, bounds: tuple[int, int] | None) -> Any:
    """None for what is no number of that kind, or out of bounds."""
    try:
        value = kind(text)
    except ValueError:
        return None
    fits = 0 < value < math.inf if bounds is None else bounds[0] <= value <= bounds[1]
    return value if fits else None


def _in_words(kind: type, bounds: tuple[int, int] | None) -> str:
    what = "a whole number" if kind is int else "a number"
    return f"{what} above 0" if bounds is None else f"{what} from {bounds[0]} to {bounds[1]}"
