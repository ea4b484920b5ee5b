"""The keys of a `config.json`: read with checks, and refused by name where nobody reads them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from tinkex.engine.errors import ModelError
from tinkex.engine.model.config import LayerConfig, ModelConfig
from tinkex.engine.model.rope_config import RopeConfig, parse_rope

# Bookkeeping, or settings of generation and of other programs: no effect on a forward pass.
_HARMLESS = """
    model_type architectures dtype torch_dtype transformers_version initializer_range use_cache
    bos_token_id eos_token_id pad_token_id unk_token_id sep_token_id cls_token_id
    decoder_start_token_id _name_or_path id2label label2id problem_type task_specific_params
    output_attentions output_hidden_states return_dict return_dict_in_generate
    output_scores is_decoder is_llama_config transformers.js_config chunk_size_feed_forward
    tokenizer_class prefix finetuning_task keys_to_ignore_at_inference temperature top_k top_p
    typical_p do_sample max_length min_length num_beams num_return_sequences
    repetition_penalty length_penalty diversity_penalty early_stopping num_beam_groups
    no_repeat_ngram_size encoder_no_repeat_ngram_size bad_words_ids remove_invalid_values
    max_new_tokens _attn_implementation_autoset attn_implementation _attn_implementation
    unsloth_fixed unsloth_version cache_implementation
    """


class Keys:
    """One family's reading of a configuration. What it asked for counts as understood."""

    def __init__(self, raw: Mapping[str, Any]) -> None:
        self._raw = raw
        self._read: set[str] = set()
        self._nested: list[Keys] = []

    def get(self, key: str, default: Any = None) -> Any:
        self._read.add(key)
        return self._raw.get(key, default)

    def has(self, key: str) -> bool:
        """Whether the key has a value."""
        return self.get(key) is not None

    def ignore(self, *keys: str) -> None:
        """Take these for understood: they have no effect in this family."""
        self._read.update(keys)

    def only(self, key: str, value: Any) -> None:
        """Refuse any other value than this one; without the key it is the default."""
        found = self.get(key)
        if found is not None and found != value:
            raise ModelError(f"config.json: {key} = {found!r} is not supported, only {value!r}")

    def size(self, key: str) -> int:
        value = self.get(key)
        if not isinstance(value, int) or isinstance(value, bool) or value < 1:
            raise ModelError(
                f"config.json: {key} must be a whole number of at least 1, not {value!r}"
            )
        return value

    def experts(self, *names: str) -> tuple[int, int]:
        """How many there are, by the setting's names, and how many of them a token goes to."""
        name = self.known_as(*names)
        count, active = self.size(name), self.size("num_experts_per_tok")
        if active > count:
            raise ModelError(
                f"config.json: num_experts_per_tok = {active} is more than {name} = {count}"
            )
        return count, active

    def known_as(self, *names: str) -> str:
        """Of a setting's names the one that is used here, else the first."""
        return next((name for name in names if self.has(name)), names[0])

    def flag(self, key: str, default: bool = False) -> bool:
        return bool(self.get(key, default))

    def nested(self, key: str) -> Keys:
        """The object under a key, whose keys are then read like these."""
        value = self.get(key)
        if not isinstance(value, dict):
            raise ModelError(f"config.json: {key} must be an object, not {value!r}")
        inner = Keys({"model_type": self.get("model_type"), **value})
        self._nested.append(inner)
        return inner

    def rope(
        self, head_dim: int, default_theta: float, default_part: float | None = None
    ) -> RopeConfig:
        names = ("rope_theta", "rope_scaling", "rope_parameters", "partial_rotary_factor")
        self.ignore(*names, "max_position_embeddings")
        return parse_rope(self._raw, head_dim, default_theta, default_part)

    def rope_of(self, kind: str, head_dim: int, theta: float, *, scaled: bool) -> RopeConfig:
        """The rotation of one kind of layer, where kinds differ. Newer files say it by kind; older
        ones say it once, which is then said of `scaled` layers; others have `theta`."""
        given, old = self.get("rope_parameters") or {}, self.get("rope_scaling") or {}
        self.ignore("rope_theta", "max_position_embeddings")
        if any(isinstance(part, dict) for part in given.values()):
            said = dict(given.get(kind) or {})
        else:
            said = {**old, **given} if scaled else {}
        said["rope_theta"] = said.get("rope_theta") or theta
        context = self.size("max_position_embeddings")
        raw = {"rope_parameters": said, "max_position_embeddings": context}
        return parse_rope(raw, head_dim, theta, None)

    def model(
        self, layers: Sequence[LayerConfig], *, tied: bool, one_plus_norms: bool = False,
        activation: str | None = "silu",
    ) -> ModelConfig:  # fmt: skip
        """The whole configuration, with what all families say in the same way. An `activation` of
        None has been read before."""
        if activation is not None:
            self.only("hidden_act", activation)
        self.only("attention_dropout", 0.0)
        self.only("pretraining_tp", 1)
        self.only("rope_interleaved", False)
        return ModelConfig(
            family=self.get("model_type"),
            vocab_size=self.size("vocab_size"),
            hidden_size=self.size("hidden_size"),
            norm_eps=self.norm_eps,
            max_context=self.size("max_position_embeddings"),
            layers=tuple(layers),
            tied=self.flag("tie_word_embeddings", tied),
            one_plus_norms=one_plus_norms,
        )

    @property
    def norm_eps(self) -> float:
        return float(self.get("rms_norm_eps", 1e-6))

    def layer_kinds(self, layers: int, known: Sequence[str], default: Sequence[str]) -> list[str]:
        """`layer_types`, or where it is missing the default, checked."""
        kinds: list[str] = list(self.get("layer_types") or default)
        unknown = sorted(set(kinds) - set(known))
        if unknown or len(kinds) != layers:
            raise ModelError(
                f"config.json: layer_types must list {' or '.join(known)} for each of "
                f"{layers} layers; got {len(kinds)} entries{', ' + unknown[0] if unknown else ''}"
            )
        return kinds

    def refuse_unread(self) -> None:
        for inner in self._nested:
            inner.refuse_unread()
        harmless = frozenset(_HARMLESS.split())
        for key, value in sorted(self._raw.items()):
            off = value is None or value is False or value in ({}, [], "")
            if not off and key not in self._read and key not in harmless:
                raise ModelError(
                    f"config.json: key {key!r} is not known to this engine and might change the "
                    f"maths of {self._raw.get('model_type')!r}; remove it if it does not"
                )
