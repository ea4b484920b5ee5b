"""Reading the header of a serialised audio tensor: how many frames does it hold?

The container is: an optional marker byte, one dtype byte, a varint rank, that many varint sizes,
then the payload. Nothing past the sizes is looked at.
"""

_MARKER = 254
_LAST_DTYPE = 7


def first_dimension(container: bytes) -> int:
    """Size of dimension 0; ValueError when the header is damaged or the tensor is a scalar."""
    if not container:
        raise ValueError("dmel is empty: expected a serialised tensor")
    position = 1 if container[0] == _MARKER else 0
    if position >= len(container):
        raise ValueError("dmel header is truncated")
    if container[position] > _LAST_DTYPE:
        raise ValueError(f"dmel has unknown dtype byte {container[position]}")
    rank, position = _varint(container, position + 1)
    if rank == 0:
        raise ValueError("dmel holds a scalar: it has no dimension 0 to take a length from")
    return _varint(container, position)[0]


def _varint(data: bytes, position: int) -> tuple[int, int]:
    value = shift = 0
    while position < len(data) and shift < 64:
        byte = data[position]
        value |= (byte & 0x7F) << shift
        position += 1
        if byte < 0x80:
            return value, position
        shift += 7
    raise ValueError("dmel header is truncated")
