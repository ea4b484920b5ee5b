"""Random training data, described once and built with either package.

A description is plain Python and numpy, so the same one makes values of tinkex and of the official
package, which must then mean the same on the wire.
"""

from types import ModuleType
from typing import Any

import numpy as np
from hypothesis import strategies as st

names = st.text(st.characters(codec="utf-8", exclude_characters="\x00"), min_size=1, max_size=12)
token_lists = st.lists(st.integers(0, 2**31 - 1), max_size=12)
finite32 = st.floats(allow_nan=False, allow_infinity=False, width=32)

text_chunks = token_lists.map(lambda tokens: ("text", tokens))
image_chunks = st.tuples(
    st.just("image"),
    st.binary(max_size=20),
    st.sampled_from(["png", "jpeg"]),
    st.none() | st.integers(0, 10_000),
)
dmel_chunks = st.binary(max_size=20).map(lambda data: ("dmel", data))


@st.composite
def tensors(draw: st.DrawFn) -> tuple[str, list[Any], list[int] | None, Any]:
    """(dtype, flat values, shape, None or CSR indices)."""
    dtype = draw(st.sampled_from(["int64", "float32"]))
    element = st.integers(-(2**63), 2**63 - 1) if dtype == "int64" else finite32
    kind = draw(st.sampled_from(["flat", "shaped", "sparse"]))
    if kind == "flat":
        return dtype, draw(st.lists(element, max_size=8)), None, None
    rows, columns = draw(st.integers(0, 4)), draw(st.integers(1, 4))
    if kind == "shaped":
        size = rows * columns
        return dtype, draw(st.lists(element, min_size=size, max_size=size)), [rows, columns], None
    counts = draw(st.lists(st.integers(0, columns), min_size=rows, max_size=rows))
    total = sum(counts)
    values = draw(st.lists(element, min_size=total, max_size=total))
    cells = [cell for count in counts for cell in range(count)]
    return dtype, values, [rows, columns], ([0, *np.cumsum(counts).tolist()], cells)


spans = st.lists(
    st.tuples(st.booleans(), names, st.integers(0, 2**40), st.integers(0, 2**40)), max_size=3
)
datums = st.fixed_dictionaries(
    {
        "chunks": st.lists(text_chunks | image_chunks | dmel_chunks, max_size=4),
        "inputs": st.dictionaries(names, tensors(), max_size=3),
        "spans": st.none() | st.tuples(spans, spans),
    }
)
configs = st.dictionaries(names, finite32 | names, max_size=3)


def build_tensor(types: ModuleType, description: tuple[str, list[Any], Any, Any]) -> Any:
    dtype, values, shape, csr = description
    crow, col = csr or (None, None)
    return types.TensorData(values, dtype, shape, crow, col)


def build_chunk(types: ModuleType, description: tuple[Any, ...]) -> Any:
    match description:
        case ("text", tokens):
            return types.EncodedTextChunk(tokens=tokens)
        case ("image", data, form, expected):
            return types.ImageChunk(data=data, format=form, expected_tokens=expected)
        case (_, dmel):
            return types.DmelChunk(dmel=dmel)
    raise AssertionError(description)


def build_spans(types: ModuleType, description: list[tuple[bool, str, int, int]]) -> list[Any]:
    made = []
    for sampled, sequence, offset, length in description:
        kind = types.SampledProvenanceSpan if sampled else types.PromptProvenanceSpan
        made.append(kind(sequence_id=sequence, offset=offset, length=length))
    return made


def build_datum(types: ModuleType, description: dict[str, Any]) -> Any:
    both = description["spans"]
    return types.Datum(
        model_input=types.ModelInput(
            chunks=[build_chunk(types, chunk) for chunk in description["chunks"]]
        ),
        loss_fn_inputs={
            name: build_tensor(types, tensor) for name, tensor in description["inputs"].items()
        },
        model_input_spans=None if both is None else build_spans(types, both[0]),
        loss_fn_input_spans=None if both is None else build_spans(types, both[1]),
    )
