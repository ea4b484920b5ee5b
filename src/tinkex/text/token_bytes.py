"""What single tokens spell, in bytes: a token may be a part of a character only.

Byte-level vocabularies write every byte as a printable character, those of the SentencePiece kind
write a space as U+2581 and a byte that is no character as <0xNN>. Added tokens spell themselves.
"""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Mapping
from typing import Any

_FALLBACK = re.compile(r"<0x([0-9A-Fa-f]{2})>")
_SPACE = "▁"


class TokenBytes:
    """The bytes of each token of one `tokenizers.Tokenizer`."""

    def __init__(self, backend: Any) -> None:
        self._backend = backend
        self._added = {
            number: str(token.content)
            for number, token in backend.get_added_tokens_decoder().items()
        }
        decoder = json.dumps(json.loads(backend.to_str())["decoder"])
        self._byte_level = "ByteLevel" in decoder
        self.raw: Mapping[int, int] = _bytes_of_tokens(backend) if "ByteFallback" in decoder else {}
        """The tokens that are one byte each, as SentencePiece writes them."""
        self._known: dict[int, bytes] = {}

    def __getitem__(self, token: int) -> bytes:
        """Empty for an id that no token has: models have more rows than their tokenizers."""
        found = self._known.get(token)
        if found is None:
            found = self._known[token] = self._bytes(token)
        return found

    def text(self, token: int) -> str:
        """For people: what is no whole character shows as U+FFFD."""
        return self[token].decode(errors="replace")

    def key(self, token: int) -> str:
        """A text that differs between tokens with different bytes: what is no whole character is
        written as `bytes:\\xe2\\x80`, as the completions API always did."""
        try:
            return self[token].decode()
        except UnicodeDecodeError:
            return "bytes:" + "".join(f"\\x{byte:02x}" for byte in self[token])

    def _bytes(self, token: int) -> bytes:
        if token in self._added:
            return self._added[token].encode()
        piece = self._backend.id_to_token(token)
        if piece is None:
            return b""
        if self._byte_level:
            table = _bytes_by_character()
            return b"".join(table.get(each) or each.encode() for each in piece)
        byte = _FALLBACK.fullmatch(piece)
        return bytes.fromhex(byte[1]) if byte else str(piece).replace(_SPACE, " ").encode()


def _bytes_of_tokens(backend: Any) -> dict[int, int]:
    tokens = ((backend.token_to_id(f"<0x{byte:02X}>"), byte) for byte in range(256))
    return {token: byte for token, byte in tokens if token is not None}


@functools.cache
def _bytes_by_character() -> dict[str, bytes]:
    """The printable characters that byte-level vocabularies write bytes with: printable Latin-1
    stands for itself, the other bytes, in order, for the characters from U+0100 on."""
    itself = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in itself]
    characters = {chr(byte): bytes([byte]) for byte in itself}
    return characters | {chr(0x100 + place): bytes([byte]) for place, byte in enumerate(others)}
