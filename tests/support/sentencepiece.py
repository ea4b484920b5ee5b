"""Tokenizers as SentencePiece's are written for `tokenizers`: of Llama 2, Mistral, Phi-3, Gemma."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers

LETTERS = "aehilortwx"
"""Together with the bytes and the rest there are as many tokens as tiny models have."""


def _stripped(backend: Tokenizer) -> None:
    """Texts begin with a space that is not seen, as in Llama 2, Mistral and Phi-3."""
    backend.normalizer = normalizers.Sequence([
        normalizers.Prepend("▁"), normalizers.Replace(" ", "▁"),
    ])  # fmt: skip
    backend.decoder = decoders.Sequence([
        decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(),
        decoders.Strip(" ", 1, 0),
    ])  # fmt: skip


def _plain(backend: Tokenizer) -> None:
    """Nothing is put before a text, as in Gemma."""
    backend.normalizer = normalizers.Replace(" ", "▁")
    backend.decoder = decoders.Sequence([
        decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(),
    ])  # fmt: skip


def _metaspace(backend: Tokenizer) -> None:
    backend.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="always", split=False)
    backend.decoder = decoders.Sequence([
        decoders.ByteFallback(), decoders.Metaspace(prepend_scheme="always", split=False),
    ])  # fmt: skip


KINDS: dict[str, Callable[[Tokenizer], None]] = {
    "stripped": _stripped,
    "plain": _plain,
    "metaspace": _metaspace,
}


def build_sentencepiece(kind: str) -> Tokenizer:
    """What is no letter of `LETTERS` and no space is written in bytes."""
    pieces = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256))]
    pieces += ["▁", *LETTERS, "▁t", "th"]
    merges = [("▁", "t"), ("t", "h")]
    vocab = {piece: number for number, piece in enumerate(pieces)}
    model = models.BPE(vocab, merges, unk_token="<unk>", byte_fallback=True, fuse_unk=True)
    backend = Tokenizer(model)
    KINDS[kind](backend)
    backend.add_special_tokens([AddedToken(name, special=True) for name in ("<s>", "</s>")])
    return backend


def write_sentencepiece(folder: Path, kind: str) -> None:
    build_sentencepiece(kind).save(str(folder / "tokenizer.json"))
