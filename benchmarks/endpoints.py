"""The OpenAI-style routes against native sampling, through the same `tinkex serve`, in one run.

    python benchmarks/endpoints.py [--parts throughput first grammar …] [--clients 1 8 32]
    python benchmarks/endpoints.py --model HuggingFaceTB/SmolLM2-135M-Instruct --tokens 24 …

A tiny model shows what surrounds a token; a small real one what a user sees of it.

Clients are connections of this process that read bytes and parse nothing but what is counted, so
that it is the server that is measured: `asample_stream` natively, `completions` and
`chat/completions` beside it, each against native sampling of the very tokens it samples after. Then
answers of a JSON schema against free ones, what a request costs before its first token, and a
thousand streams that stay open: how long any of them was silent.

All ways take turns, every other turn backwards, and native sampling runs twice in each: what it
differs by from itself is what cannot be told apart here. A part or a number of clients is a piece
that takes less than two minutes; rows of a page that were not taken now stay.
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
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from endpoint_ways import KEY, PROMPT, Exchange, Http, chat, chat_tokens, completions, native
from report import Row, update
from served_process import ServedProcess, machine, processor_s, serving

import tinkex
from tinkex.server.endpoints.openai.chat_request import ChatRequest
from tinkex.server.engines.model_sources import DEFAULT_MODEL, default_cache, resolve
from tinkex.text.formats.chosen import parser
from tinkex.text.model_text import ModelText

TINY = "tinkex/tiny-llama"
TOKENS = 64
FIRST = 4
"""Tokens of the answers whose first is timed."""
ROUNDS = {1: 120, 8: 60, 32: 24}
FIRST_ROUNDS = {1: 1000, 8: 300, 32: 100}
REAL_ROUNDS = {1: 24, 8: 16, 32: 8}
REAL_FIRST_ROUNDS = {1: 60, 8: 30, 32: 12}
"""Of a model that takes its time."""
TRIES, OTHERS, LONGEST_S = 2, 0.05, 50.0
FEWEST = 4
"""Turns are taken until enough have others at most so much of the processors, or so many times the
turns there are to be, or so much time has passed, but never fewer than these."""
PARTS = ("throughput", "first", "grammar", "costs", "streams")
ENDLESS = {"type": "array", "items": {"type": "string"}, "minItems": 1000}
STREAMS = 1000
OPEN_S = 21.0
NOTE = """
Ours is the endpoint, the alternative the native route; both are medians over turns. "Better by" is
theirs over ours for times. "Least" is the best turn of each. Time to the first token is from the
request to the first token's bytes. Chat is compared with native sampling after the same tokens,
which need no template there. "Native against itself" is a second native client in the same turns:
the distance of its ratio from 1 is the noise of the others. An answer of a JSON schema, which needs
a mask for every step, is compared with a free answer of the same conversation.
Processor time is of server and engine together. Their two cores also run the clients, whose own
processor time is given too, because it limits the throughput. What a route costs more than native
sampling is the server's part, since the engine does the same work for both.
Turns in which other processes took more than 5 % of the processors are repeated, up to twice the
number that counts or for 50 s. The quietest ones count; the others' share in the worst of those is
given.
A thousand streams: the engine decodes 64 rows at once, so most of them wait. Silence is the longest
time in which any of them got neither a token nor a heartbeat, which is due after 10 s.
"""


@dataclass(frozen=True)
class Load:
    """So many clients at once, each for so many tokens, for so many turns."""

    clients: int
    tokens: int
    turns: int


class Turns:
    """What ways gave turn by turn: in each, all of them, every other one backwards."""

    def __init__(self, ways: Mapping[str, Exchange], load: Load) -> None:
        self._ways = ways
        self.load = load
        self.found: dict[str, list[Taken]] = {}
        self.others = 0.0
        """Of all processor time, what processes took that are none of ours: in the worst turn."""

    async def take(self, served: ServedProcess) -> None:
        """Until there are enough that nobody else worked in; then the quietest of them."""
        await self._turn(0, served)  # it fills caches
        until = time.perf_counter() + LONGEST_S
        tries: list[tuple[float, dict[str, Taken]]] = []
        for turn in range(1, TRIES * self.load.turns + 1):
            begun, used = machine(), _used_s(served)
            taken = await self._turn(turn, served)
            busy, there = (now - then for now, then in zip(machine(), begun, strict=True))
            tries.append(((busy - (_used_s(served) - used)) / there, taken))
            late = turn >= FEWEST and time.perf_counter() > until
            if late or sum(others <= OTHERS for others, _ in tries) == self.load.turns:
                break
        kept = sorted(tries, key=lambda each: each[0])[: self.load.turns]
        self.others = kept[-1][0]
        for name in self._ways:
            self.found[name] = [taken[name] for _, taken in kept]

    async def _turn(self, number: int, served: ServedProcess) -> dict[str, Taken]:
        names = list(self._ways) if number % 2 else list(reversed(self._ways))
        return {name: await self._once(self._ways[name], served) for name in names}

    async def _once(self, ask: Exchange, served: ServedProcess) -> Taken:
        begun, used, own = time.perf_counter(), served.processor_s(), time.process_time()
        around = processor_s(served.pid)
        each = await asyncio.gather(*(ask() for _ in range(self.load.clients)))
        seconds, used = time.perf_counter() - begun, served.processor_s() - used
        tokens = self.load.clients * self.load.tokens
        own, around = time.process_time() - own, processor_s(served.pid) - around
        first = statistics.median(first for first, _ in each)
        spent = (1e3 * each / tokens for each in (used, around, own))
        return Taken(tokens / seconds, *spent, 1e3 * first)

    def row(self, what: str, name: str, against: str, of: Figure) -> list[Row]:
        """Medians, and the best turn of each."""
        ours, theirs = ([of.get(it) for it in self.found[each]] for each in (name, against))
        best = max if of.higher else min
        return [
            Row(what, *_two(statistics.median, ours, of.unit, theirs), of.higher, of.target),
            Row(f"{what}, least", *_two(best, ours, of.unit, theirs), of.higher),
        ]

    def company(self, what: str) -> Row:
        return Row(f"others' share of the processors, {what}", 100 * self.others, "%")

    def used(self, what: str, name: str, against: str) -> list[Row]:
        """Processor time of a token: means, for a clock of a hundredth of a second."""
        told = (
            ("", lambda it: it.used_ms),
            (" in the server", lambda it: it.around_ms),
            (" in the client", lambda it: it.own_ms),
        )
        found, other = self.found[name], self.found[against]
        return [
            Row(
                f"processor time of a token{where}, {what}",
                *_two(statistics.mean, list(map(get, found)), "ms", list(map(get, other))),
            )
            for where, get in told
        ]


def _used_s(served: ServedProcess) -> float:
    return served.processor_s() + time.process_time()


def _two(
    of: Callable[[list[float]], float], ours: list[float], unit: str, theirs: list[float]
) -> tuple[float, str, float]:
    return of(ours), unit, of(theirs)


class Taken(NamedTuple):
    """One turn of one way."""

    rate: float  # tokens a second
    used_ms: float  # processor time of server and engine for a token
    around_ms: float  # of that, the server's
    own_ms: float  # and of this process
    first_ms: float  # to the first token, the median of the clients


class Figure(NamedTuple):
    """What of a turn is told."""

    get: Callable[[Taken], float]
    unit: str
    higher: bool
    target: str


RATE = Figure(lambda taken: taken.rate, "tokens/s", True, "≥0.98×")
FIRST_TOKEN = Figure(lambda taken: taken.first_ms, "ms", False, "≥0.98×")
BOUND_RATE = RATE._replace(target="≥0.95×")
ITSELF = "native again"


def native_for(name: str) -> str:
    return "native, chat's prompt" if "chat" in name else "native"


async def throughput(served: ServedProcess, model: str, sampler: str, load: Load) -> list[Row]:
    http, chats = Http(served.url, model), chat_tokens(served.url, model)
    tokens = load.tokens
    turns = Turns(
        {
            "native": native(http, sampler, PROMPT, tokens),
            "completions": completions(http, False, tokens),
            "native, chat's prompt": native(http, sampler, chats, tokens),
            "completions, streamed": completions(http, True, tokens),
            "chat, streamed": chat(http, ignore_eos=True, max_tokens=tokens),
            ITSELF: native(http, sampler, PROMPT, tokens),
        },
        load,
    )
    await turns.take(served)
    rows = []
    for name in ("completions", "completions, streamed", "chat, streamed"):
        what = f"{name}, {load.clients} at once"
        rows += turns.row(what, name, native_for(name), RATE)
        rows += turns.used(what, name, native_for(name))
    what = f"native against itself, {load.clients} at once"
    rows += turns.row(what, ITSELF, "native", RATE._replace(target=""))
    return [*rows, turns.company(f"rates, {load.clients} at once")]


async def first(served: ServedProcess, model: str, sampler: str, load: Load) -> list[Row]:
    http, chats = Http(served.url, model), chat_tokens(served.url, model)
    tokens = load.tokens
    turns = Turns(
        {
            "native": native(http, sampler, PROMPT, tokens),
            "completions, streamed": completions(http, True, tokens),
            "native, chat's prompt": native(http, sampler, chats, tokens),
            "chat, streamed": chat(http, ignore_eos=True, max_tokens=tokens),
            ITSELF: native(http, sampler, PROMPT, tokens),
        },
        load,
    )
    await turns.take(served)
    rows = []
    for name in ("completions, streamed", "chat, streamed"):
        what = f"first token, {name}, {load.clients} at once"
        rows += turns.row(what, name, native_for(name), FIRST_TOKEN)
    what = f"first token, native against itself, {load.clients} at once"
    rows += turns.row(what, ITSELF, "native", FIRST_TOKEN._replace(target=""))
    return [*rows, turns.company(f"first token, {load.clients} at once")]


async def grammar(served: ServedProcess, model: str, _: str, load: Load) -> list[Row]:
    """An answer that a schema holds at every token, against one that may be anything."""
    http = Http(served.url, model)
    schema = {"name": "answer", "schema": ENDLESS, "strict": True}
    asked = {"response_format": {"type": "json_schema", "json_schema": schema}}
    limit = {"max_tokens": load.tokens}
    rows = []
    for how, stream in (("streamed", True), ("whole", False)):
        free = chat(http, stream, ignore_eos=True, **limit)
        ways = {"free": free, "bound": chat(http, stream, **asked, **limit), "free again": free}
        turns = Turns(ways, load)
        await turns.take(served)
        what = f"chat of a JSON schema, {how}, {load.clients} at once"
        rows += turns.row(what, "bound", "free", BOUND_RATE) + turns.used(what, "bound", "free")
        what = f"free chat against itself, {how}, {load.clients} at once"
        rows += turns.row(what, "free again", "free", RATE._replace(target=""))
        rows.append(turns.company(f"JSON schema, {how}, {load.clients} at once"))
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


def load_of(part: str, clients: int, model: str, tokens: int) -> Load:
    if part == "first":
        return Load(clients, FIRST, (FIRST_ROUNDS if model == TINY else REAL_FIRST_ROUNDS)[clients])
    return Load(clients, tokens, (ROUNDS if model == TINY else REAL_ROUNDS)[clients])


MEASURED = {"throughput": throughput, "first": first, "grammar": grammar}


def through_the_door(asked: argparse.Namespace) -> Iterator[list[Row]]:
    """Rows, piece by piece."""
    model = asked.model
    with serving("--model", model) as served:
        with tinkex.ServiceClient(base_url=served.url, api_key=KEY) as service:
            sampler = service.create_sampling_client(base_model=model)._sampling_session_id
            for part, count in itertools.product(asked.parts, asked.clients):
                if part in MEASURED:
                    load = load_of(part, count, model, asked.tokens)
                    yield asyncio.run(MEASURED[part](served, model, sampler, load))
        if "streams" in asked.parts:
            yield asyncio.run(open_streams(served.url, model))


def keep(model: str, rows: list[Row]) -> None:
    """Write what a piece gave, lest it be lost with the next."""
    title, name = "OpenAI-style endpoints against native sampling", "endpoints"
    if model != TINY:
        short = model.rpartition("/")[2]
        title, name = f"{title}, {short}", f"{name}_{short.lower()}"
    update(name, title, rows, NOTE, whole=False)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=list(PARTS))
    parser.add_argument("--clients", type=int, nargs="+", choices=ROUNDS, default=list(ROUNDS))
    parser.add_argument("--model", default=TINY)
    parser.add_argument("--tokens", type=int, default=TOKENS, help="of an answer")
    asked = parser.parse_args()
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    if "costs" in asked.parts:
        keep(asked.model, costs())
    if set(asked.parts) - {"costs"}:
        for rows in through_the_door(asked):
            keep(asked.model, rows)


if __name__ == "__main__":
    main()
