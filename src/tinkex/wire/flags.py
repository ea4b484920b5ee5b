"""The switches a server sets for its clients: the startup config and the refreshed one.

The fields and their defaults are defined by the answer types; this module gives them their place in
the protocol and reads them strictly: an explicit null or a wrong type is an error, an unknown flag
is ignored, and a server states only what differs from the defaults.
"""

from tinkex.types.service import ClientConfigResponse, ClientDynamicConfigResponse
from tinkex.wire.json_text import dumps

ClientConfig = ClientConfigResponse
ClientDynamicConfig = ClientDynamicConfigResponse


def encode_config(config: ClientConfig | ClientDynamicConfig) -> bytes:
    """All flags, so that a client need not know our defaults."""
    return dumps(config.model_dump())
