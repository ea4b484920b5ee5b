"""The keys of a `config.json`: read with checks, and refused by name where nobody reads them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from tinkex.engine.errors import ModelError
from tinkex.engine.model.config import LayerConfig, ModelConfig
from tinkex.engine.model.rope_config import RopeConfig, as_object, parse_rope, positive

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
    unsloth_fixed unsloth_version cache_implementation pretraining_tp
    """


class Keys:
    """One family's reading of a configuration. What it asked for counts as understood."""

    def __init__(self, raw: Mapping[str, Any], norm_eps: float = 1e-6) -> None:
        """`norm_eps` is what the family's norms add where nothing is said."""
        self._raw, self._norm_eps = raw, norm_eps
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

    def size(self, key: str, default: int | None = None, least: int = 1) -> int:
        """A whole number; `default` where there is none, if that is not None."""
        value = self.get(key) if default is None or self.has(key) else default
        if not isinstance(value, int) or isinstance(value, bool) or value < least:
            raise ModelError(
                f"config.json: {key} must be a whole number of at least {least}, not {value!r}"
            )
        return value

    def window(self, default: int | None) -> int | None:
        """`sliding_window`, where null says that there is none and `default` is for no word."""
        said = self.get("sliding_window", default)
        return None if said is None else self.size("sliding_window", default)

    def number(self, key: str, default: float) -> float:
        """A number above 0; `default` where the key is missing."""
        return positive(key, self.get(key, default))

    def items(self, key: str) -> list[Any]:
        """A list; empty where there is none."""
        value = self.get(key)
        if value is not None and not isinstance(value, list):
            raise ModelError(f"config.json: {key} must be a list, not {value!r}")
        return list(value or ())

    def object(self, key: str) -> Mapping[str, Any]:
        """An object; empty where there is none."""
        return as_object(key, self.get(key))

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
        value = self.get(key, default)
        if value not in (None, False, True):
            raise ModelError(f"config.json: {key} must be true or false, not {value!r}")
        return bool(value)

    def nested(self, key: str) -> Keys:
        """The object under a key, whose keys are then read like these."""
        raw = {"model_type": self.get("model_type"), **self.object(key)}
        inner = Keys(raw, self._norm_eps)
        self._nested.append(inner)
        return inner

    def rope(
        self, head_dim: int, default_theta: float, default_part: float | None = None,
        unsaid: Mapping[str, Any] | None = None,
    ) -> RopeConfig:  # fmt: skip
        """One rotation for all layers. `unsaid` is its scaling where nothing is said of any."""
        names = ("rope_theta", "rope_scaling", "rope_parameters", "partial_rotary_factor")
        self.ignore(*names, "max_position_embeddings")
        said = self.has("rope_scaling") or self.has("rope_parameters")
        raw = self._raw if said else {**self._raw, "rope_scaling": unsaid}
        return parse_rope(raw, head_dim, default_theta, default_part)

    def rope_of(self, kind: str, head_dim: int, theta: float, *, scaled: bool) -> RopeConfig:
        """The rotation of one kind of layer, where kinds differ. Newer files say it by kind; older
        ones say it once, which is then said of `scaled` layers; others have `theta`."""
        given, old = self.object("rope_parameters"), self.object("rope_scaling")
        self.ignore("rope_theta", "max_position_embeddings")
        if any(isinstance(part, dict) for part in given.values()):
            said = dict(as_object(f"rope_parameters.{kind}", given.get(kind)))
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
        return self.number("rms_norm_eps", self._norm_eps)

    def layer_kinds(self, layers: int, known: Sequence[str], default: Sequence[str]) -> list[str]:
        """`layer_types`, or where it is missing the default, checked."""
        kinds: list[str] = self.items("layer_types") or list(default)
        unknown = sorted({str(kind) for kind in kinds if kind not in known})
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
