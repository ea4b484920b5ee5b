"""OpenAI- and Anthropic-style endpoints: two more APIs on the same sampler.

declared   what a request may hold, field by field: honoured, or refused by name
targets    which weights a `model` names, for whom
draws      prompts through the lanes: admitted, metered, cancelled when no client waits
…          one module per route, each with its request and its answers
"""
