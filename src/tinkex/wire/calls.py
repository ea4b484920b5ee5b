"""What a server finds in a forward/backward body: numpy views on the bytes that arrived.

The arrays are read-only, may be unaligned, and keep the body alive. Knows nothing of how they were
encoded.
"""

from dataclasses import dataclass, field
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from tinkex.types.csr import Csr
from tinkex.types.model_input import DmelChunk, ImageChunk
from tinkex.types.provenance import ProvenanceSpans
from tinkex.wire.errors import WireError

Int32Array: TypeAlias = NDArray[np.int32]
WireTensor: TypeAlias = NDArray[Any] | Csr
"""int64 or float32, dense in its shape or compressed by rows."""


@dataclass(frozen=True, slots=True)
class WireDatum:
    """One datum. `chunks` holds an int32 array for text, the chunk itself for images and audio."""

    chunks: tuple[Int32Array | ImageChunk | DmelChunk, ...]
    inputs: dict[str, WireTensor]
    model_input_spans: ProvenanceSpans = field(default_factory=list)
    loss_fn_input_spans: ProvenanceSpans = field(default_factory=list)

    @property
    def tokens(self) -> Int32Array:
        """All token ids in order; WireError when some chunk is not text."""
        arrays = []
        for index, chunk in enumerate(self.chunks):
            if not isinstance(chunk, np.ndarray):
                problem = f"is of type {chunk.type!r}: the served models read text only"
                raise WireError(f"model_input.chunks[{index}]", problem)
            arrays.append(chunk)
        if len(arrays) == 1:
            return arrays[0]
        return np.concatenate(arrays) if arrays else np.zeros(0, dtype=np.int32)


@dataclass(frozen=True, slots=True)
class ForwardBackwardCall:
    """A forward/backward request, checked."""

    model_id: str  # of the run
    seq_id: int  # its place in the order of the run
    data: list[WireDatum]  # in the order of the answer
    loss_fn: str  # a built-in one, or "custom"
    loss_fn_config: dict[str, float | str]  # both maps of the request
    forward_only: bool  # no gradient is wanted
