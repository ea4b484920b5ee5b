"""The OpenAI-style routes against native sampling, through the same `tinkex serve`, in one run.

    python benchmarks/endpoints.py [--parts throughput grammar costs streams] [--clients 1 8 32]
    python benchmarks/endpoints.py --model HuggingFaceTB/SmolLM2-135M-Instruct --parts throughput

A tiny model shows what surrounds a token; a small real one what a user sees of it.

Clients are connections of this process that read bytes and parse nothing but what is counted, so
that it is the server that is measured: `asample_stream` natively, `completions` and
`chat/completions` beside it, each against native sampling of the very tokens it samples after. Then
answers of a JSON schema against free ones, what a request costs before its first token, and a
thousand streams that stay open: how long any of them was silent. Of the tiny model only a run of
all parts is written down; another model has a page of its own.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import json
import os
import resource
import statistics
import time
import urllib.request
from collections.abc import Awaitable, Callable, Mapping
from typing import Any
from urllib.parse import urlsplit

from report import Row, write
from served_process import ServedProcess, serving

import tinkex
from tinkex.server.endpoints.openai.chat_request import ChatRequest
from tinkex.server.engines.model_sources import DEFAULT_MODEL, default_cache, resolve
from tinkex.text.formats.chosen import parser
from tinkex.text.model_text import ModelText

TINY, KEY = "tinkex/tiny-llama", "tml-bench"
PROMPT = list(b"It was a dark and stormy night; the rain fell in torrents, except at ")
MESSAGES = [{"role": "user", "content": bytes(PROMPT[:40]).decode()}]
TOKENS = 64
FIRST = 4
"""Tokens of the answers whose first is timed."""
ROUNDS = {1: 10, 8: 5, 32: 3}
FIRST_ROUNDS = {1: 60, 8: 16, 32: 6}
NUMBERS = itertools.count(1)
PARTS = ("throughput", "grammar", "costs", "streams")
ENDLESS = {"type": "array", "items": {"type": "string"}, "minItems": 1000}
STREAMS = 1000
OPEN_S = 21.0
NOTE = """
Ours is the endpoint, the alternative the native route, interleaved round by round; better by is
theirs over ours for times. Time to the first token is from the request to the first token's bytes.
Chat is against native sampling after the same tokens, which need no template there. An answer of a
JSON schema, whose every step has a mask, is against a free one of the same conversation.
Processor time is of server and engine together, on a machine with two cores for them and the
clients: what they take of it is what throughput there hangs on, and other work disturbs it less.
A thousand streams: the engine decodes 64 rows at once, so most of them wait; silence is the longest
time in which any of them got neither a token nor a heartbeat, which is due after 10 s.
"""

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


def native(http: Http, sampler: str, prompt: list[int], tokens: int = TOKENS) -> Exchange:
    def ask() -> Awaitable[tuple[float, float]]:
        body = {
            "sampling_session_id": sampler,
            "seq_id": next(NUMBERS),
            "prompt": {"chunks": [{"type": "encoded_text", "tokens": prompt}]},
            "sampling_params": {"max_tokens": tokens, "stop": []},
        }
        return http.exchange("/api/v1/asample_stream", body)

    return ask


def completions(http: Http, stream: bool, tokens: int = TOKENS) -> Exchange:
    body = {"model": http.model, "prompt": PROMPT, "max_tokens": tokens, "ignore_eos": True}
    return lambda: http.exchange("/v1/completions", {**body, "stream": stream})


def chat(http: Http, **asked: Any) -> Exchange:
    body = {"model": http.model, "messages": MESSAGES, "max_tokens": TOKENS, **asked}
    return lambda: http.exchange("/v1/chat/completions", {**body, "stream": True})


def chat_tokens(url: str, model: str) -> list[int]:
    """The tokens a chat is sampled after."""
    body = {"model": model, "messages": MESSAGES, "max_tokens": 1, "return_token_ids": True}
    headers = {"x-api-key": KEY}
    asked = urllib.request.Request(f"{url}/v1/chat/completions", json.dumps(body).encode(), headers)
    with urllib.request.urlopen(asked) as answer:
        found: list[int] = json.load(answer)["prompt_token_ids"]
    return found


async def rates(
    ways: Mapping[str, Exchange], clients: int, served: ServedProcess
) -> dict[str, tuple[float, float]]:
    """(tokens per second, milliseconds of processor time per token of server and engine) of so
    many at once, taken in turns: medians."""
    found: dict[str, list[tuple[float, float]]] = {name: [] for name in ways}
    for turn in range(ROUNDS[clients] + 1):
        for name, ask in ways.items():
            begun, used = time.perf_counter(), served.processor_s()
            await asyncio.gather(*(ask() for _ in range(clients)))
            seconds, used = time.perf_counter() - begun, served.processor_s() - used
            if turn:  # the first fills caches
                tokens = clients * TOKENS
                found[name].append((tokens / seconds, 1e3 * used / tokens))
    return {
        name: (statistics.median(rate for rate, _ in each), statistics.mean(ms for _, ms in each))
        for name, each in found.items()
    }


async def firsts(ways: Mapping[str, Exchange], clients: int) -> dict[str, float]:
    """Milliseconds to the first token of so many at once, taken in turns: medians."""
    found: dict[str, list[float]] = {name: [] for name in ways}
    for turn in range(FIRST_ROUNDS[clients] + 1):
        for name, ask in ways.items():
            each = await asyncio.gather(*(ask() for _ in range(clients)))
            if turn:
                found[name] += [first * 1e3 for first, _ in each]
    return {name: statistics.median(each) for name, each in found.items()}


async def throughput(served: ServedProcess, model: str, sampler: str, clients: int) -> list[Row]:
    http, chats = Http(served.url, model), chat_tokens(served.url, model)
    ways = {
        "native": native(http, sampler, PROMPT),
        "native, chat's prompt": native(http, sampler, chats),
        "completions": completions(http, stream=False),
        "completions, streamed": completions(http, stream=True),
        "chat, streamed": chat(http, ignore_eos=True),
    }
    short = {
        "native": native(http, sampler, PROMPT, FIRST),
        "native, chat's prompt": native(http, sampler, chats, FIRST),
        "completions, streamed": completions(http, True, FIRST),
        "chat, streamed": chat(http, ignore_eos=True, max_tokens=FIRST),
    }
    rate, first = await rates(ways, clients, served), await firsts(short, clients)
    rows = []
    for name in ("completions", "completions, streamed", "chat, streamed"):
        against = "native, chat's prompt" if "chat" in name else "native"
        what = f"{name}, {clients} at once"
        rows.append(Row(what, rate[name][0], "tokens/s", rate[against][0], True, "≥0.98×"))
        used = rate[name][1], rate[against][1]
        rows.append(Row(f"processor time of a token, {what}", used[0], "ms", used[1]))
        if name in short:
            told = f"first token, {what}"
            rows.append(Row(told, first[name], "ms", first[against], False, "≥0.98×"))
    return rows


async def grammar(served: ServedProcess, model: str, clients: int) -> list[Row]:
    """An answer that a schema holds at every token, against one that may be anything."""
    http = Http(served.url, model)
    schema = {"name": "answer", "schema": ENDLESS, "strict": True}
    asked = {"response_format": {"type": "json_schema", "json_schema": schema}}
    ways = {"bound": chat(http, **asked), "free": chat(http, ignore_eos=True)}
    bound, free = (await rates(ways, clients, served)).values()
    what = f"chat of a JSON schema, streamed, {clients} at once"
    return [
        Row(what, bound[0], "tokens/s", free[0], True, "≥0.95×"),
        Row(f"processor time of a token, {what}", bound[1], "ms", free[1]),
    ]


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


async def open_streams(url: str, model: str) -> list[Row]:
    http = Http(url, model)
    body = {
        "model": model,
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


def through_the_door(model: str, parts: list[str], clients: list[int]) -> list[Row]:
    rows: list[Row] = []
    with serving("--model", model) as served:
        with tinkex.ServiceClient(base_url=served.url, api_key=KEY) as service:
            sampler = service.create_sampling_client(base_model=model)._sampling_session_id
            for count in clients if "throughput" in parts else []:
                rows += told(asyncio.run(throughput(served, model, sampler, count)))
            for count in clients if "grammar" in parts else []:
                rows += told(asyncio.run(grammar(served, model, count)))
        if "streams" in parts:
            rows += told(asyncio.run(open_streams(served.url, model)))
    return rows


def told(rows: list[Row]) -> list[Row]:
    """The same; whoever waits sees them."""
    for row in rows:
        print("  ".join(row.cells()), flush=True)
    return rows


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=list(PARTS))
    parser.add_argument("--clients", type=int, nargs="+", choices=ROUNDS, default=list(ROUNDS))
    parser.add_argument("--model", default=TINY)
    asked = parser.parse_args()
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    rows = told(costs()) if "costs" in asked.parts else []
    if set(asked.parts) - {"costs"}:
        rows = through_the_door(asked.model, asked.parts, asked.clients) + rows
    title = "OpenAI-style endpoints against native sampling"
    if asked.model != TINY:
        short = asked.model.rpartition("/")[2]
        write(f"endpoints_{short.lower()}", f"{title}, {short}", rows, NOTE)
    elif len(asked.parts) == len(PARTS):
        write("endpoints", title, rows, NOTE)


if __name__ == "__main__":
    main()
