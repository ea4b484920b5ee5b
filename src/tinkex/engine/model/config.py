"""What a decoder looks like, read from a Hugging Face `config.json`.

Every key is either understood, known to be harmless, switched off, or refused by name: a model is
never computed with a setting ignored. Knows nothing of tensors or files.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from tinkex.engine.errors import ModelError
from tinkex.engine.model.rope import RopeConfig, parse_rope

FAMILIES = ("llama", "mistral", "qwen2", "qwen3", "smollm3")

_UNDERSTOOD = """
    model_type vocab_size hidden_size intermediate_size num_hidden_layers num_attention_heads
    num_key_value_heads head_dim rms_norm_eps max_position_embeddings hidden_act tie_word_embeddings
    rope_theta rope_scaling rope_parameters attention_bias mlp_bias sliding_window
    use_sliding_window max_window_layers layer_types no_rope_layers no_rope_layer_interval
    attention_dropout pretraining_tp rope_interleaved partial_rotary_factor bos_token_id
    eos_token_id
    """

# Bookkeeping, or settings of generation and of other programs: no effect on a forward pass.
_HARMLESS = """
    architectures dtype torch_dtype transformers_version initializer_range use_cache
    pad_token_id unk_token_id sep_token_id cls_token_id decoder_start_token_id _name_or_path
    id2label label2id problem_type task_specific_params output_attentions output_hidden_states
    return_dict return_dict_in_generate output_scores is_decoder is_llama_config
    transformers.js_config chunk_size_feed_forward tokenizer_class prefix finetuning_task
    keys_to_ignore_at_inference temperature top_k top_p typical_p do_sample max_length min_length
    num_beams num_return_sequences repetition_penalty length_penalty diversity_penalty
    early_stopping num_beam_groups no_repeat_ngram_size encoder_no_repeat_ngram_size
    bad_words_ids remove_invalid_values max_new_tokens _attn_implementation_autoset
    attn_implementation _attn_implementation unsloth_fixed unsloth_version
    """

# Keys whose only supported value is this one.
_ONLY: Mapping[str, Any] = {
    "hidden_act": "silu",
    "attention_dropout": 0.0,
    "pretraining_tp": 1,
    "rope_interleaved": False,
}


@dataclass(frozen=True, slots=True)
class ModelConfig:
    """The shape and the maths of one decoder. Per-layer settings are tuples of `layers` entries.

    `windows[i]` is the number of positions a token of layer i may attend to, itself included, or
    None for all before it. `rotary[i]` says whether layer i rotates queries and keys.
    """

    family: str
    vocab_size: int
    hidden_size: int
    intermediate_size: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    norm_eps: float
    max_context: int
    rope: RopeConfig
    windows: tuple[int | None, ...]
    rotary: tuple[bool, ...]
    qkv_bias: bool = False
    o_bias: bool = False
    mlp_bias: bool = False
    qk_norm: bool = False
    tied: bool = False
    eos_ids: tuple[int, ...] = ()
    bos_id: int | None = None

    @property
    def q_size(self) -> int:
        return self.heads * self.head_dim

    @property
    def kv_size(self) -> int:
        return self.kv_heads * self.head_dim


def parse_config(raw: Mapping[str, Any]) -> ModelConfig:
    """The configuration in a parsed `config.json`; `ModelError` names what is not supported."""
    family = raw.get("model_type")
    if family not in FAMILIES:
        raise ModelError(
            f"config.json: model_type {family!r} is not supported; supported: {', '.join(FAMILIES)}"
        )
    _refuse_unknown(raw)
    heads, hidden = _size(raw, "num_attention_heads"), _size(raw, "hidden_size")
    head_dim = raw.get("head_dim") or (128 if family == "qwen3" else hidden // heads)
    layers = _size(raw, "num_hidden_layers")
    bias = bool(raw.get("attention_bias", False)) and family in ("llama", "qwen3", "smollm3")
    config = ModelConfig(
        family=family,
        vocab_size=_size(raw, "vocab_size"),
        hidden_size=hidden,
        intermediate_size=_size(raw, "intermediate_size"),
        layers=layers,
        heads=heads,
        kv_heads=_kv_heads(raw, family, heads),
        head_dim=head_dim,
        norm_eps=float(raw.get("rms_norm_eps", 1e-6)),
        max_context=_size(raw, "max_position_embeddings"),
        rope=parse_rope(raw, head_dim, 2_000_000.0 if family == "smollm3" else 10_000.0),
        windows=_windows(raw, family, layers),
        rotary=_rotary(raw, family, layers),
        qkv_bias=bias or family == "qwen2",
        o_bias=bias,
        mlp_bias=bool(raw.get("mlp_bias", False)) and family in ("llama", "smollm3"),
        qk_norm=family == "qwen3",
        tied=bool(raw.get("tie_word_embeddings", family == "smollm3")),
        eos_ids=_ids(raw.get("eos_token_id")),
        bos_id=next(iter(_ids(raw.get("bos_token_id"))), None),
    )
    if config.heads % config.kv_heads or config.head_dim % 2:
        raise ModelError(
            f"config.json: {config.heads} attention heads of size {config.head_dim} cannot share "
            f"{config.kv_heads} key-value heads; heads must be a multiple and the size even"
        )
    return config


def _refuse_unknown(raw: Mapping[str, Any]) -> None:
    known = {*_UNDERSTOOD.split(), *_HARMLESS.split()}
    for key, value in sorted(raw.items()):
        if key in _ONLY and value is not None and value != _ONLY[key]:
            raise ModelError(
                f"config.json: {key} = {value!r} is not supported, only {_ONLY[key]!r}"
            )
        off = value is None or value is False or value in ({}, [], "")
        if not off and key not in known:
            raise ModelError(
                f"config.json: key {key!r} is not known to this engine and might change the "
                f"maths of {raw.get('model_type')!r}; remove it if it does not"
            )


def _size(raw: Mapping[str, Any], key: str) -> int:
    value = raw.get(key)
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise ModelError(f"config.json: {key} must be a whole number of at least 1, not {value!r}")
    return value


def _kv_heads(raw: Mapping[str, Any], family: str, heads: int) -> int:
    if raw.get("num_key_value_heads") is None and family == "llama":
        return heads
    return _size(raw, "num_key_value_heads")


def _windows(raw: Mapping[str, Any], family: str, layers: int) -> tuple[int | None, ...]:
    window = raw.get("sliding_window", 4096 if family == "mistral" else None)
    if family == "llama" or window is None:
        return (None,) * layers
    if family == "mistral":
        return (window,) * layers
    if not raw.get("use_sliding_window", False):
        return (None,) * layers
    return tuple(
        window if kind == "sliding_attention" else None
        for kind in _layer_types(raw, family, layers)
    )


def _layer_types(raw: Mapping[str, Any], family: str, layers: int) -> list[str]:
    kinds: list[str] | None = raw.get("layer_types")
    if kinds is None:
        if family == "smollm3":
            slides = [not rotary for rotary in _rotary(raw, family, layers)]
        else:
            slides = [layer >= raw.get("max_window_layers", 28) for layer in range(layers)]
        kinds = ["sliding_attention" if slide else "full_attention" for slide in slides]
    unknown = sorted(set(kinds) - {"sliding_attention", "full_attention"})
    if unknown or len(kinds) != layers:
        raise ModelError(
            f"config.json: layer_types must list full_attention or sliding_attention for each of "
            f"{layers} layers; got {len(kinds)} entries{', ' + unknown[0] if unknown else ''}"
        )
    return kinds


def _rotary(raw: Mapping[str, Any], family: str, layers: int) -> tuple[bool, ...]:
    if family != "smollm3":
        return (True,) * layers
    flags = raw.get("no_rope_layers")
    if flags is None:
        every = raw.get("no_rope_layer_interval", 4)
        flags = [(layer + 1) % every != 0 for layer in range(layers)]
    if len(flags) != layers:
        raise ModelError(
            f"config.json: no_rope_layers has {len(flags)} entries for {layers} layers"
        )
    return tuple(bool(flag) for flag in flags)


def _ids(value: int | list[int] | None) -> tuple[int, ...]:
    if value is None:
        return ()
    return tuple(value) if isinstance(value, list) else (value,)
