"""Server flags: defaults when left out, errors when null, unknown ones ignored."""

import pytest

from tinkex.wire.errors import WireError
from tinkex.wire.flags import (
    ClientConfig,
    ClientDynamicConfig,
    encode_config,
)
from tinkex.wire.json_text import decode


def test_an_empty_answer_means_every_default() -> None:
    assert decode(ClientConfig, b"{}") == ClientConfig()
    assert decode(ClientDynamicConfig, b"{}") == ClientDynamicConfig()
    assert ClientConfig().fwdbwd_max_chunk_bytes_count == 5_000_000


def test_flags_round_trip_and_unknown_ones_are_ignored() -> None:
    config = ClientConfig(proto_compress_fwdbwd=True, sample_max_concurrent_requests=7)
    assert decode(ClientConfig, encode_config(config)) == config
    assert decode(ClientConfig, b'{"some_future_flag": 1}') == ClientConfig()


@pytest.mark.parametrize(
    "body", [b'{"proto_compress_fwdbwd": null}', b'{"fwdbwd_max_chunk_len": "x"}']
)
def test_a_null_or_mistyped_flag_is_named(body: bytes) -> None:
    with pytest.raises(WireError, match="fwdbwd"):
        decode(ClientConfig, body)


def test_the_official_defaults_are_ours() -> None:
    official = pytest.importorskip("tinker.types")
    assert official.ClientConfigResponse().model_dump() == ClientConfig().model_dump()
    assert official.ClientDynamicConfigResponse().model_dump() == ClientDynamicConfig().model_dump()
