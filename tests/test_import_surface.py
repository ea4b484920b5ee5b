"""Everything the official package offers is offered here, under the same name and shape.

`docs/names.md` is the table of it: this file checks that it is complete and up to date, and writes
it anew with TINKEX_REGENERATE=1.
"""

import importlib
import inspect
import os
import subprocess
import sys
from pathlib import Path

import pytest

import tinkex
import tinkex.compat
import tinkex.types
from support.surface import (
    CLIENTS,
    defined_names,
    fields,
    kind,
    members,
    parameters,
    type_modules,
    type_names,
)

tinker = pytest.importorskip("tinker")
official_types = pytest.importorskip("tinker.types")

PAGE = Path(__file__).parent.parent / "docs" / "names.md"
TYPES = type_names(official_types)
OURS_AS_WELL = {
    "SampleResponse": [("weights", "None")],
    "TrainingRun": [
        (name, "None")
        for name in [
            "sampler_gap",
            "name",
            "note",
            "created_at",
            "state",
            "step",
            "last_loss",
            "tokens",
        ]
    ],
    "Checkpoint": [("base_model", "None"), ("step", "None")],
    "SupportedModel": [("max_training_length", "None")],
}
"""Fields of our own, behind all of theirs."""
HEAVY = ("numpy", "pydantic", "google.protobuf", "pyqwest", "rich", "torch", "click", "zstandard")


def test_importing_tinkex_loads_no_dependency() -> None:
    code = f"import sys, tinkex; print([m for m in {HEAVY!r} if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


@pytest.mark.parametrize("name", tinker.__all__)
def test_every_public_name_resolves(name: str) -> None:
    assert name in tinkex.__all__
    assert getattr(tinkex, name) is getattr(tinkex, name)
    assert name in dir(tinkex)


def test_unknown_names_are_attribute_errors() -> None:
    with pytest.raises(AttributeError, match="Nonsense"):
        _ = tinkex.Nonsense


@pytest.mark.parametrize(
    "name", [n for n in tinker.__all__ if isinstance(getattr(tinker, n), type)]
)
def test_public_classes_show_the_package_as_their_home(name: str) -> None:
    ours = getattr(tinkex, name)
    if ours is str:
        return
    assert ours.__module__ == "tinkex"
    assert ours.__name__ == name


def test_an_uncaught_error_shows_the_package_as_its_home() -> None:
    """Also when the program never named the class, which is when its traceback is read."""
    code = "from tinkex.client.errors import NotFoundError as e; print(e.__module__)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "tinkex"


@pytest.mark.parametrize("name", TYPES)
def test_every_type_has_the_same_kind_fields_defaults_and_members(name: str) -> None:
    ours, theirs = getattr(tinkex.types, name), getattr(official_types, name)
    assert kind(ours) == kind(theirs)
    assert fields(ours) == fields(theirs) + OURS_AS_WELL.get(name, [])
    if isinstance(theirs, type) and theirs is not str:
        assert set(members(theirs)) <= set(members(ours))


@pytest.mark.parametrize("module", type_modules(official_types))
def test_every_type_module_exists_and_holds_the_same_objects(module: str) -> None:
    ours = importlib.import_module(f"tinkex.types.{module}")
    theirs = importlib.import_module(f"tinker.types.{module}")
    defined = defined_names(Path(str(theirs.__file__)))
    assert defined or module == "shared"
    for name in defined:
        assert getattr(ours, name) is getattr(tinkex.types, name)


@pytest.mark.parametrize("module", tinkex.compat.module_names())
def test_every_row_of_the_compat_table_resolves(module: str) -> None:
    loaded = importlib.import_module(module)
    for name in getattr(loaded, "__all__", ()):
        assert getattr(loaded, name) is not None


@pytest.mark.parametrize(
    "path",
    [
        "_version.__version__",
        "lib.api_future_impl.QueueState",
        "lib.api_future_impl.QueueStateObserver",
        "lib.experimental.ExperimentalWarning",
        "lib.public_interfaces.sampling_client.RetryConfig",
        "lib.public_interfaces.service_client.RetryConfig",
        "lib.public_interfaces.training_client.APIFuture",
        "lib.retry_handler.RetryableException",
        "lib.telemetry.Telemetry",
    ],
)
def test_names_that_programs_import_from_inside_the_official_package_resolve(path: str) -> None:
    """Seen in public training code; `hasattr` on theirs shows that the path is right."""
    module, _, name = path.rpartition(".")
    assert hasattr(importlib.import_module(f"tinker.{module}"), name)
    assert getattr(importlib.import_module(f"tinkex.{module}"), name) is not None
    with pytest.raises(AttributeError):
        _ = importlib.import_module(f"tinkex.{module}").Nonsense


@pytest.mark.parametrize("client", CLIENTS)
def test_every_client_method_has_the_official_parameters(client: str) -> None:
    ours, theirs = getattr(tinkex, client), getattr(tinker, client)
    assert set(members(theirs)) <= set(members(ours))
    different = {}
    for name in members(theirs):
        wanted = parameters(
            inspect.getattr_static(theirs, name)
            if isinstance(inspect.getattr_static(theirs, name), property)
            else getattr(theirs, name)
        )
        mine = inspect.getattr_static(ours, name)
        found = parameters(mine if isinstance(mine, property) else getattr(ours, name))
        if not extends(found, wanted):
            different[name] = (found, wanted)
    assert different == {}


def extends(found: list[tuple[str, str, str]], wanted: list[tuple[str, str, str]]) -> bool:
    """The official parameters in order, and after them only optional ones of our own."""
    named = [each for each in wanted if each[1] != "VAR_KEYWORD"]
    kept = [each for each in found if each in named]
    added = [each for each in found if each not in named]
    return kept == named and all(each[2] or each[1].startswith("VAR") for each in added)


def test_the_page_of_names_is_complete_and_fresh() -> None:
    page = render()
    if os.environ.get("TINKEX_REGENERATE"):
        PAGE.write_text(page)
    assert PAGE.read_text() == page, "run TINKEX_REGENERATE=1 pytest tests/test_import_surface.py"


def render() -> str:
    lines = [
        "---",
        "orphan: true",
        "---",
        "# Names",
        "",
        f"Every public name of `tinker` {tinker.__version__}, and what it is in `tinkex`.",
        "",
        "This page is written by `tests/test_import_surface.py`, which fails when it is stale.",
        "",
        "## Top level",
        "",
        "| `tinker.` | in `tinkex` |",
        "|---|---|",
        *(f"| `{name}` | {where(name)} |" for name in tinker.__all__),
        *(
            f"| – | `{name}` (an addition) |"
            for name in tinkex.__all__
            if name not in tinker.__all__
        ),
        "",
        "## Clients",
        "",
        *(line for client in CLIENTS for line in client_table(client)),
        "## Types",
        "",
        "| `tinker.types.` | kind | fields | members |",
        "|---|---|---|---|",
        *(type_row(name) for name in TYPES),
        "",
    ]
    return "\n".join(lines)


def where(name: str) -> str:
    value = getattr(tinkex, name)
    return f"module `{value.__name__}`" if inspect.ismodule(value) else f"`tinkex.{name}`"


def client_table(client: str) -> list[str]:
    ours, theirs = set(members(getattr(tinkex, client))), members(getattr(tinker, client))
    rows = [f"| `{name}` | {'yes' if name in ours else '**missing**'} |" for name in theirs]
    rows += [f"| – | `{name}` (an addition) |" for name in sorted(ours - set(theirs))]
    return [f"### {client}", "", "| official | here |", "|---|---|", *rows, ""]


def type_row(name: str) -> str:
    ours, theirs = getattr(tinkex.types, name), getattr(official_types, name)
    shown = ", ".join(f"`{field}`" for field, _ in fields(ours)) or "–"
    own = members(ours) if isinstance(theirs, type) and theirs is not str else []
    official = members(theirs) if own else []
    listed = [f"`{m}`" if m in official else f"`{m}` (an addition)" for m in own]
    return f"| `{name}` | {kind(ours)} | {shown} | {', '.join(listed) or '–'} |"
