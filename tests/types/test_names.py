"""Reading a name loads its module, and only that; the table of names is exact."""

import subprocess
import sys
from types import ModuleType

import pytest

import tinkex.types
from tinkex.types import _NAMES


def defined_in(module: ModuleType) -> set[str]:
    """Public classes and aliases a module makes itself."""
    names = set()
    for name, value in list(vars(module).items()):
        own_class = isinstance(value, type) and value.__module__ in (module.__name__, "tinkex")
        alias = name in getattr(module, "__annotations__", {}) and name[0].isupper()
        if (own_class or alias) and name[0].isupper() and not name.isupper():
            names.add(name)
    return names


INTERNAL = {
    *("PathParts", "CheckpointKind", "QueueState", "CompleteMetadata"),
    *("Int64Array", "TensorArray", "TopkList"),
}


@pytest.mark.parametrize("module", list(_NAMES))
def test_the_table_holds_exactly_what_a_module_defines(module: str) -> None:
    loaded = __import__(f"tinkex.types.{module}", fromlist=["*"])
    own = {
        name
        for name in defined_in(loaded) - INTERNAL
        if not any(name in names.split() for other, names in _NAMES.items() if other != module)
    }
    assert own == set(_NAMES[module].split())


def test_importing_the_package_loads_nothing_heavy() -> None:
    code = (
        "import sys, tinkex.types; "
        "print([m for m in ('numpy', 'pydantic', 'torch', 'google.protobuf') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_unknown_names_are_attribute_errors() -> None:
    with pytest.raises(AttributeError, match="Nonsense"):
        _ = tinkex.types.Nonsense
    assert "TensorData" in dir(tinkex.types)


def test_public_classes_show_the_package_as_their_home() -> None:
    assert repr(tinkex.types.TensorData) == "<class 'tinkex.TensorData'>"
    assert tinkex.types.SamplingParams.__module__ == "tinkex"
