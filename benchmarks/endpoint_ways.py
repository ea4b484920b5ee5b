"""Ways to ask a server for tokens, natively and by the OpenAI-style routes, with next to no client.

One connection each, on which bytes are read and nothing is parsed: a client that decoded every
event would take a core of a machine that has two.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import time
import urllib.request
from collections.abc import Awaitable, Callable
from typing import Any
from urllib.parse import urlsplit

KEY = "tml-bench"
PROMPT = list(b"It was a dark and stormy night; the rain fell in torrents, except at ")
MESSAGES = [{"role": "user", "content": bytes(PROMPT[:40]).decode()}]
NUMBERS = itertools.count(1)

Exchange = Callable[[], Awaitable[tuple[float, float]]]


class Http:
    """Requests to one server and model, each on a connection of its own."""

    def __init__(self, url: str, model: str) -> None:
        self.model, parts = model, urlsplit(url)
        self._host, self._port = parts.hostname, parts.port

    async def open(self, path: str, body: Any) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        reader, writer = await asyncio.open_connection(self._host, self._port)
        data = json.dumps(body).encode()
        head = f"POST {path} HTTP/1.1\r\nhost: x\r\nx-api-key: {KEY}\r\nconnection: close\r\n"
        writer.write(f"{head}content-length: {len(data)}\r\n\r\n".encode() + data)
        return reader, writer

    async def exchange(self, path: str, body: Any) -> tuple[float, float]:
        """(seconds to the first token, seconds in all)."""
        begun = time.perf_counter()
        reader, writer = await self.open(path, body)
        head = await reader.readuntil(b"\r\n\r\n")
        assert b" 200 " in head[:20], head
        seen, first = b"", 0.0
        while part := await reader.read(1 << 16):
            seen += part
            if not first and (b'"text"' in seen or b'"content"' in seen or b'"tokens"' in seen):
                first = time.perf_counter() - begun
        writer.close()
        return first, time.perf_counter() - begun


def native(http: Http, sampler: str, prompt: list[int], tokens: int) -> Exchange:
    def ask() -> Awaitable[tuple[float, float]]:
        body = {
            "sampling_session_id": sampler,
            "seq_id": next(NUMBERS),
            "prompt": {"chunks": [{"type": "encoded_text", "tokens": prompt}]},
            "sampling_params": {"max_tokens": tokens, "stop": []},
        }
        return http.exchange("/api/v1/asample_stream", body)

    return ask


def completions(http: Http, stream: bool, tokens: int) -> Exchange:
    body = {"model": http.model, "prompt": PROMPT, "max_tokens": tokens, "ignore_eos": True}
    return lambda: http.exchange("/v1/completions", {**body, "stream": stream})


def chat(http: Http, stream: bool = True, **asked: Any) -> Exchange:
    body = {"model": http.model, "messages": MESSAGES, **asked}
    return lambda: http.exchange("/v1/chat/completions", {**body, "stream": stream})


def chat_tokens(url: str, model: str) -> list[int]:
    """The tokens a chat is sampled after."""
    body = {"model": model, "messages": MESSAGES, "max_tokens": 1, "return_token_ids": True}
    headers = {"x-api-key": KEY}
    asked = urllib.request.Request(f"{url}/v1/chat/completions", json.dumps(body).encode(), headers)
    with urllib.request.urlopen(asked) as answer:
        found: list[int] = json.load(answer)["prompt_token_ids"]
    return found
