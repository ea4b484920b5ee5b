"""The OpenAI-style routes: completions, chat, responses, models and tokenizers."""
