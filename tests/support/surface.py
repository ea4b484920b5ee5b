"""The public surface of a package, as plain values that two packages can be compared by."""

import ast
import dataclasses
import inspect
from pathlib import Path
from types import ModuleType
from typing import Any

from pydantic import BaseModel
from pydantic_core import PydanticUndefined

CLIENTS = ("ServiceClient", "TrainingClient", "SamplingClient", "RestClient", "AdminClient")


def type_names(types: ModuleType) -> list[str]:
    """The names a `types` module offers, modules and private ones aside."""
    return sorted(
        name
        for name in dir(types)
        if not name.startswith("_")
        and name != "annotations"
        and not isinstance(getattr(types, name), ModuleType)
    )


def type_modules(types: ModuleType) -> list[str]:
    """The submodules of the official `types` that users import from, as dotted names."""
    found = []
    for path in map(str, types.__path__):
        for file in sorted(Path(path).rglob("*.py")):
            parts = file.relative_to(path).with_suffix("").parts
            if not any(part.startswith("_") for part in parts):
                found.append(".".join(parts))
            elif parts[-1] == "__init__" and len(parts) == 2 and not parts[0].startswith("_"):
                found.append(parts[0])
    return found


def defined_names(file: Path) -> list[str]:
    """The public classes and aliases a source file makes itself."""
    names = []
    for node in ast.parse(file.read_text()).body:
        if isinstance(node, ast.ClassDef):
            names.append(node.name)
        elif isinstance(node, ast.Assign | ast.AnnAssign):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            names += [target.id for target in targets if isinstance(target, ast.Name)]
        elif isinstance(node, ast.ImportFrom) and "_pydantic_types" in (node.module or ""):
            names += [alias.name for alias in node.names]  # its public home is this file
    return [name for name in names if name[0].isupper() and not name.isupper()]


def kind(value: Any) -> str:
    """How strict a type is: what it does with fields nobody knows."""
    if isinstance(value, type) and issubclass(value, BaseModel):
        extra = {"forbid": "strict", "ignore": "lenient", "allow": "open"}
        frozen = "" if value.model_config.get("frozen") else ", mutable"
        return extra[value.model_config.get("extra", "ignore")] + frozen
    if dataclasses.is_dataclass(value):
        return "dataclass" if value.__dataclass_params__.frozen else "mutable dataclass"
    if isinstance(value, type) and value is not str:
        return "enum"
    return "alias"


def fields(value: Any) -> list[tuple[str, str]]:
    """(name, default as text) of every field in declaration order; `required` without one."""
    if isinstance(value, type) and issubclass(value, BaseModel):
        return [
            (
                name,
                "required"
                if field.default is PydanticUndefined and not field.default_factory
                else shown(field.get_default(call_default_factory=True)),
            )
            for name, field in value.model_fields.items()
        ]
    if dataclasses.is_dataclass(value):
        return [(field.name, _dataclass_default(field)) for field in dataclasses.fields(value)]
    return []


def _dataclass_default(field: Any) -> str:
    if field.default_factory is not dataclasses.MISSING:
        return shown(field.default_factory())
    return "required" if field.default is dataclasses.MISSING else shown(field.default)


def shown(value: object) -> str:
    return (
        repr(float(value))
        if isinstance(value, int) and not isinstance(value, bool)
        else repr(value)
    )


def members(cls: type) -> list[str]:
    """Public methods and properties of a class, those of pydantic and object aside."""
    ignored = set(dir(BaseModel)) | set(dir(object))
    return sorted(
        name
        for name in dir(cls)
        if not name.startswith("_")
        and name not in ignored
        and name not in dict(fields(cls))
        and not name.startswith(("validate_", "serialize_"))
    )


def parameters(method: Any) -> list[tuple[str, str, str]]:
    """(name, kind, default as text) of each parameter, `self` included."""
    if isinstance(method, property):
        return []
    return [
        (name, each.kind.name, "" if each.default is each.empty else repr(each.default))
        for name, each in inspect.signature(method).parameters.items()
    ]
