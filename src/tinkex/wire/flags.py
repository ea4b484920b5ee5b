"""The switches a server sets for its clients: the startup config and the refreshed one.

The fields and their defaults are defined by the answer types; this module gives them their place in
the protocol and reads them strictly: an explicit null or a wrong type is an error, an unknown flag
is ignored, and a server states only what differs from the defaults.
"""

from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError

from tinkex.types.service import ClientConfigResponse, ClientDynamicConfigResponse
from tinkex.wire.errors import WireError
from tinkex.wire.json import dumps, first_problem, loads

ClientConfig = ClientConfigResponse
ClientDynamicConfig = ClientDynamicConfigResponse

DYNAMIC_REFRESH_FLOOR = 10
"""Seconds: a server cannot make a client ask more often than this."""

_Config = TypeVar("_Config", bound=BaseModel)


def decode_client_config(body: bytes) -> ClientConfig:
    return _decoded(ClientConfig, body)


def decode_dynamic_config(body: bytes) -> ClientDynamicConfig:
    return _decoded(ClientDynamicConfig, body)


def encode_config(config: ClientConfig | ClientDynamicConfig) -> bytes:
    """All flags, so that a client need not know our defaults."""
    return dumps(config.model_dump())


def changed_flags(config: ClientConfig | ClientDynamicConfig) -> dict[str, Any]:
    """The flags that differ from their defaults."""
    default = type(config)().model_dump()
    return {name: value for name, value in config.model_dump().items() if value != default[name]}


def _decoded(kind: type[_Config], body: bytes) -> _Config:
    try:
        return kind.model_validate(loads(body))
    except ValidationError as error:
        raise WireError(*first_problem(error)) from error
