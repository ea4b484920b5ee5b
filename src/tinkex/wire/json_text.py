"""JSON text to values and back, strictly: compact UTF-8, no NaN, errors that name the field.

Knows no particular message.
"""

import json
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError
from pydantic_core import from_json

from tinkex.wire.errors import WireError

_Model = TypeVar("_Model", bound=BaseModel)


def dumps(value: Any) -> bytes:
    """Compact UTF-8. WireError for NaN, infinities and values JSON has no form for."""
    try:
        text = json.dumps(value, separators=(",", ":"), ensure_ascii=False, allow_nan=False)
        return text.encode()
    except (TypeError, ValueError) as error:
        raise WireError("body", f"cannot be written as JSON: {error}") from error


def loads(body: bytes | bytearray | memoryview) -> Any:
    """The value of a JSON body; WireError when it is not JSON, or holds NaN."""
    try:
        return from_json(bytes(body), allow_inf_nan=False)
    except ValueError as error:
        raise WireError("body", f"is not valid JSON: {error}") from error


def loads_object(body: bytes | bytearray | memoryview) -> dict[str, Any]:
    value = loads(body)
    if not isinstance(value, dict):
        raise WireError("body", f"must be a JSON object, got {type(value).__name__}")
    return value


def encode_request(model: BaseModel) -> bytes:
    """A request body: None dropped, defaults kept, keys in the order they are declared."""
    return model.__pydantic_serializer__.to_json(model, exclude_none=True)


def decode(kind: type[_Model], body: bytes | bytearray | memoryview) -> _Model:
    """A request or an answer of type `kind`; WireError names the first field that is wrong."""
    return validated(kind, loads_object(body))


def validated(kind: type[_Model], value: Any) -> _Model:
    """The same, from a value that is already parsed."""
    try:
        return kind.model_validate(value)
    except ValidationError as error:
        raise WireError(*first_problem(error)) from error


def first_problem(error: ValidationError) -> tuple[str, str]:
    """(field, problem) of the first error, without the value: it could be a secret."""
    detail = error.errors(include_url=False, include_input=False, include_context=False)[0]
    path = ""
    for part in detail["loc"]:
        path += f"[{part}]" if isinstance(part, int) else f".{part}" if path else str(part)
    others = error.error_count() - 1
    more = f" (and {others} more)" if others else ""
    return path or "body", f"{detail['msg']}{more}"
