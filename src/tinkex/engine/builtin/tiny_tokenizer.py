"""The tokenizer of the built-in tiny models: one token a byte, plus the markers of chat formats.

Every text survives `decode(encode(text))`. Turn markers are special tokens, so that text encoded
with `split_special_tokens=True` cannot forge one; tags that models write themselves (`<think>` and
such) are single tokens but ordinary ones. It knows nothing of the models' weights.
"""

from __future__ import annotations

from pathlib import Path

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

from tinkex.engine.builtin.atomic_folder import write_json

PAD = "<|endoftext|>"
EOS = "<|im_end|>"
SPECIAL = (
    PAD,
    "<|im_start|>",
    EOS,
    "<|begin_of_text|>",
    "<|start_header_id|>",
    "<|end_header_id|>",
    "<|eot_id|>",
    "<|reserved_0|>",
    "<|reserved_1|>",
    "<|reserved_2|>",
)
TAGS = (
    "<think>",
    "</think>",
    "<tool_call>",
    "</tool_call>",
    "<tool_response>",
    "</tool_response>",
)
BYTES = 256
VOCAB_SIZE = BYTES + len(SPECIAL) + len(TAGS)
EOS_ID = BYTES + SPECIAL.index(EOS)
PAD_ID = BYTES + SPECIAL.index(PAD)

PLAIN_TEMPLATE = (
    "{%- for message in messages -%}"
    "{{ '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>\\n' }}"
    "{%- endfor -%}"
    "{%- if add_generation_prompt -%}{{ '<|im_start|>assistant\\n' }}{%- endif -%}"
)
"""ChatML and nothing else."""

THINKING_TEMPLATE = (
    "{%- set ns = namespace(query=-1) -%}"
    "{%- for message in messages if message.role == 'user' -%}"
    "{%- set ns.query = loop.index0 -%}"
    "{%- endfor -%}"
    "{%- for message in messages -%}"
    "{%- set role = 'user' if message.role == 'tool' else message.role -%}"
    "{%- set text = message.content or '' -%}"
    "{%- set produced = role == 'assistant' and loop.last and ns.query >= 0 -%}"
    "{{ '<|im_start|>' + role + '\\n' }}"
    "{%- if message.role == 'tool' -%}"
    "{{ '<tool_response>\\n' + text + '\\n</tool_response>' }}"
    "{%- elif produced -%}"
    "{%- set thought = message.reasoning_content or '' -%}"
    "{%- set answer = text -%}"
    "{%- if '</think>' in text -%}"
    "{%- set thought = text.split('</think>')[0].split('<think>')[-1] -%}"
    "{%- set answer = text.split('</think>')[1:] | join('</think>') -%}"
    "{%- endif -%}"
    "{{ '<think>\\n' + thought.strip('\\n') + '\\n</think>\\n\\n' + answer.lstrip('\\n') }}"
    "{%- else -%}"
    "{{ text }}"
    "{%- endif -%}"
    "{%- for call in message.tool_calls or [] -%}"
    "{%- set call = call.function or call -%}"
    "{{ '\\n' if text or not loop.first else '' }}"
    '{{ \'<tool_call>\\n{"name": "\' + call.name + \'", "arguments": \' }}'
    "{{ (call.arguments if call.arguments is string else call.arguments | tojson) }}"
    "{{ '}\\n</tool_call>' }}"
    "{%- endfor -%}"
    "{{ '<|im_end|>\\n' }}"
    "{%- endfor -%}"
    "{%- if add_generation_prompt -%}{{ '<|im_start|>assistant\\n' }}{%- endif -%}"
)
"""ChatML whose last assistant turn opens with a (possibly empty) block of thought."""


def build_tokenizer() -> Tokenizer:
    tokenizer = Tokenizer(models.BPE(vocab=_byte_vocabulary(), merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(text, normalized=False) for text in SPECIAL])
    tokenizer.add_tokens([AddedToken(text, normalized=False, special=False) for text in TAGS])
    return tokenizer


def write_tokenizer(folder: Path, *, template: str, max_length: int) -> None:
    """Write tokenizer.json and tokenizer_config.json as Hugging Face's loaders read them."""
    build_tokenizer().save(str(folder / "tokenizer.json"))
    write_json(
        folder / "tokenizer_config.json",
        {
            "tokenizer_class": "PreTrainedTokenizerFast",
            "model_max_length": max_length,
            "clean_up_tokenization_spaces": False,
            "eos_token": EOS,
            "pad_token": PAD,
            "chat_template": template,
        },
    )


def _byte_vocabulary() -> dict[str, int]:
    """Byte `b` is token `b`, spelled the way byte-level tokenizers spell bytes."""
    return {symbol: byte for byte, symbol in enumerate(_byte_symbols())}


def _byte_symbols() -> list[str]:
    """Printable Latin-1 bytes spell themselves; the rest take code points from 256 on, in order."""
    printable = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    hidden = [byte for byte in range(BYTES) if byte not in printable]
    return [chr(byte if byte in printable else 256 + hidden.index(byte)) for byte in range(BYTES)]
