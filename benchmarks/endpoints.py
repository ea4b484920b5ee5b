"""The OpenAI-style routes against native sampling, through the same `tinkex serve`, in one run.

    python benchmarks/endpoints.py

Clients are connections of this process that read bytes and parse nothing but what is counted, so
that it is the server that is measured: `asample_stream` natively, `completions` and
`chat/completions` beside it. Then what a request costs before its first token, and a thousand
streams that stay open: how long any of them was silent.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import os
import resource
import statistics
import time
from collections.abc import Awaitable, Callable
from typing import Any
from urllib.parse import urlsplit

from report import Row, write
from served_process import serving

import tinkex
from tinkex.server.endpoints.openai.chat_request import ChatRequest
from tinkex.server.engines.model_sources import DEFAULT_MODEL, default_cache, resolve
from tinkex.text.formats.chosen import parser
from tinkex.text.model_text import ModelText

MODEL, KEY = "tinkex/tiny-llama", "tml-bench"
PROMPT = list(b"It was a dark and stormy night; the rain fell in torrents, except at ")
TOKENS = 64
ROUNDS = 6
STREAMS = 1000
OPEN_S = 24.0
NOTE = """
Ours is the endpoint, the alternative the native route, interleaved round by round; better by is
theirs over ours for times. Time to the first token is from the request to the first token's bytes.
Chat has its template to render and a prompt of other length: its first token is no like for like.
A thousand streams: the engine decodes 64 rows at once, so most of them wait; silence is the longest
time in which any of them got neither a token nor a heartbeat, which is due after 10 s.
"""

Exchange = Callable[[], Awaitable[tuple[float, float]]]


class Http:
    """Requests to one server, each on a connection of its own."""

    def __init__(self, url: str) -> None:
        parts = urlsplit(url)
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


def native(http: Http, sampler: str) -> Exchange:
    numbers = itertools.count(1)

    def ask() -> Awaitable[tuple[float, float]]:
        body = {
            "sampling_session_id": sampler,
            "seq_id": next(numbers),
            "prompt": {"chunks": [{"type": "encoded_text", "tokens": PROMPT}]},
            "sampling_params": {"max_tokens": TOKENS, "stop": []},
        }
        return http.exchange("/api/v1/asample_stream", body)

    return ask


def completions(http: Http, stream: bool) -> Exchange:
    body = {"model": MODEL, "prompt": PROMPT, "max_tokens": TOKENS, "ignore_eos": True}
    return lambda: http.exchange("/v1/completions", {**body, "stream": stream})


def chat(http: Http) -> Exchange:
    message = {"role": "user", "content": bytes(PROMPT[:40]).decode()}
    body = {"model": MODEL, "messages": [message], "max_tokens": TOKENS, "ignore_eos": True}
    return lambda: http.exchange("/v1/chat/completions", {**body, "stream": True})


async def measured(ask: Exchange, clients: int) -> tuple[float, float]:
    """(tokens per second, median seconds to the first token) of so many at once."""
    begun = time.perf_counter()
    found = await asyncio.gather(*(ask() for _ in range(clients)))
    seconds = time.perf_counter() - begun
    return clients * TOKENS / seconds, statistics.median(first for first, _ in found)


async def throughput(url: str, sampler: str) -> list[Row]:
    http = Http(url)
    ways = {
        "native": native(http, sampler),
        "completions": completions(http, stream=False),
        "completions, streamed": completions(http, stream=True),
        "chat, streamed": chat(http),
    }
    rows = []
    for clients in (1, 8, 32):
        found: dict[str, list[tuple[float, float]]] = {name: [] for name in ways}
        for _ in range(ROUNDS):
            for name, ask in ways.items():
                found[name].append(await measured(ask, clients))
        rate = {name: statistics.median(r for r, _ in each) for name, each in found.items()}
        first = {name: statistics.median(f for _, f in each) * 1e3 for name, each in found.items()}
        for name in [name for name in ways if name != "native"]:
            what = f"{name}, {clients} at once"
            rows.append(Row(what, rate[name], "tokens/s", rate["native"], True, "≥0.98×"))
            if "streamed" in name:
                what = f"first token, {what}"
                rows.append(Row(what, first[name], "ms", first["native"], False, "≥0.98×"))
    return rows


def costs() -> list[Row]:
    """What a request takes of the event loop beside its tokens."""
    text = ModelText(resolve(DEFAULT_MODEL, default_cache(os.environ), os.environ).folder, "x")
    turn = [{"role": "user", "content": "What is the capital of France? " * 4}] * 8
    tool = {"type": "function", "function": {"name": "add", "parameters": {"type": "object"}}}
    body = json.dumps({"model": "x", "messages": turn, "tools": [tool]}).encode()
    asked = ChatRequest.read(body).conversation(len(body))
    said = 'Yes.\n<tool_call>\n{"name": "add", "arguments": {"a": 1}}\n</tool_call>' * 4

    def parse() -> None:
        reader = parser("hermes", {"add": {}}, thinking=False)
        for place in range(0, len(said), 4):
            reader.add(said[place : place + 4])
        reader.end()

    works: dict[str, Callable[[], Any]] = {
        "read and check a chat request of 8 messages": lambda: ChatRequest.read(body),
        "template and tokens of it": lambda: text.chat(asked.messages, asked.tools),
        f"tell {len(said) // 4} tokens of an answer apart": parse,
    }
    return [Row(name, _each(work) * 1e3, "ms", target="≤1 ms") for name, work in works.items()]


def _each(work: Callable[[], Any]) -> float:
    times = []
    for _ in range(200):
        begun = time.perf_counter()
        work()
        times.append(time.perf_counter() - begun)
    return statistics.median(times)


async def open_streams(url: str) -> list[Row]:
    http = Http(url)
    body = {
        "model": MODEL,
        "prompt": PROMPT,
        "max_tokens": 3000,
        "ignore_eos": True,
        "stream": True,
    }
    ended: list[str] = []

    async def hold() -> float:
        reader, writer = await http.open("/v1/completions", body)
        longest, last = 0.0, time.perf_counter()
        until = last + OPEN_S
        while (now := time.perf_counter()) < until:
            try:
                part = await asyncio.wait_for(reader.read(1 << 16), until - now)
            except TimeoutError:
                break
            if not part:
                ended.append("closed by the server")
                break
            longest, last = max(longest, time.perf_counter() - last), time.perf_counter()
        longest = max(longest, time.perf_counter() - last)
        writer.close()
        return longest

    silences = await asyncio.gather(*(hold() for _ in range(STREAMS)))
    return [
        Row(f"longest silence of {STREAMS:,} open streams", max(silences), "s", target="≤20 s"),
        Row("median silence", statistics.median(silences), "s"),
        Row("streams that the server ended", float(len(ended)), ""),
    ]


def main() -> None:
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    rows = costs()
    with serving("--model", MODEL) as served:
        url = served.url
        with tinkex.ServiceClient(base_url=url, api_key=KEY) as service:
            sampler = service.create_sampling_client(base_model=MODEL)
            rows = asyncio.run(throughput(url, sampler._sampling_session_id)) + rows
        rows += asyncio.run(open_streams(url))
    write("endpoints", "OpenAI-style endpoints against native sampling", rows, NOTE)


if __name__ == "__main__":
    main()
