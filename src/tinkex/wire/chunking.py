"""How a batch is cut into requests: byte estimates, and greedy chunks in order.

The estimates are those of the protocol, not the exact size of the encoding.
"""

from collections.abc import Iterator, Sequence

from tinkex.types.datum import Datum
from tinkex.types.model_input import (
    DmelChunk,
    EncodedTextChunk,
    ImageAssetPointerChunk,
    ImageChunk,
    ModelInput,
)
from tinkex.wire.limits import BYTES_PER_SAMPLED_PROMPT_TOKEN, BYTES_PER_TEXT_TOKEN

_Chunk = EncodedTextChunk | ImageChunk | ImageAssetPointerChunk | DmelChunk


def datum_bytes(datum: Datum) -> int:
    """What a datum counts for in chunking and in the dispatch budget."""
    tensors = sum(tensor.nbytes for tensor in datum.loss_fn_inputs.values())
    return tensors + _input_bytes(datum.model_input, BYTES_PER_TEXT_TOKEN)


def prompt_bytes(prompt: ModelInput) -> int:
    """What a prompt counts for in the sampling budget."""
    return _input_bytes(prompt, BYTES_PER_SAMPLED_PROMPT_TOKEN)


def chunk_data(
    data: Sequence[Datum], *, max_datums: int, max_bytes: int
) -> Iterator[tuple[list[Datum], int]]:
    """Consecutive chunks and their estimated bytes. A datum over `max_bytes` travels alone."""
    chunk: list[Datum] = []
    total = 0
    for datum in data:
        size = datum_bytes(datum)
        if chunk and (total + size > max_bytes or len(chunk) >= max_datums):
            yield chunk, total
            chunk, total = [], 0
        chunk.append(datum)
        total += size
    if chunk:
        yield chunk, total


def _input_bytes(model_input: ModelInput, per_token: int) -> int:
    return sum(_chunk_bytes(chunk, per_token) for chunk in model_input.chunks)


def _chunk_bytes(chunk: _Chunk, per_token: int) -> int:
    match chunk:
        case EncodedTextChunk():
            return per_token * len(chunk.tokens)
        case ImageChunk():
            return len(chunk.data)
        case DmelChunk():
            return len(chunk.dmel)
        case ImageAssetPointerChunk():
            return len(chunk.location)
