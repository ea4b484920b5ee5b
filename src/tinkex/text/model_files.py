"""The text files of a model's folder: their names, once, for those who serve and who fetch them."""

TOKENIZER = "tokenizer.json"
"""Without this one there is no tokenizer."""

TOKENIZER_SETTINGS = (
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "chat_template.jinja",
)
"""What the light tokenizer and the one of `transformers` read beside it, where a model has them."""

SERVED = (
    TOKENIZER,
    *TOKENIZER_SETTINGS,
    "vocab.json",
    "merges.txt",
    "tokenizer.model",
    "config.json",
    "generation_config.json",
)
"""Everything about a model's text that a server gives to its clients."""
