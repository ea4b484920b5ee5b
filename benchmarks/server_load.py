"""A minute of load on a tiny model: 64 clients sampling, 8 training. Errors, memory, heartbeats.

    python benchmarks/server_load.py [--seconds 60]

A real server with the real engine. Every client has its own key, so its own tenant. Memory is that
of the server's process without the engine's; the slope is taken after the first third, when caches
and pools have filled.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import threading
import time
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

from report import Row, write

import tinkex
from tinkex import types
from tinkex.server.engines.model_sources import default_cache, resolve

MODEL = "tinkex/tiny-llama"
SAMPLERS, TRAINERS = 64, 8
PORT = 8767


class Load:
    """What all clients share: when to stop, and what they counted."""

    def __init__(self, url: str, seconds: float) -> None:
        self.url = url
        self.until = time.monotonic() + seconds
        self.samples = 0
        self.steps = 0
        self.errors: list[str] = []
        self._lock = threading.Lock()

    @property
    def over(self) -> bool:
        return time.monotonic() > self.until

    def count(self, samples: int = 0, steps: int = 0) -> None:
        with self._lock:
            self.samples += samples
            self.steps += steps

    def sample(self, number: int) -> None:
        prompt = types.ModelInput.from_ints(list(range(1, 40 + number)))
        params = types.SamplingParams(max_tokens=16, temperature=1.0)
        with tinkex.ServiceClient(base_url=self.url, api_key=f"tml-sampler-{number}") as service:
            client = service.create_sampling_client(base_model=MODEL)
            while not self.over:
                client.sample(prompt, num_samples=2, sampling_params=params).result()
                self.count(samples=2)

    def train(self, number: int) -> None:
        tokens = [(number + 3 * k) % 60 + 1 for k in range(33)]
        inputs = {"target_tokens": tokens[1:], "weights": [1.0] * 32}
        source = types.ModelInput.from_ints(tokens[:-1])
        data = [types.Datum(model_input=source, loss_fn_inputs=inputs)] * 8
        with tinkex.ServiceClient(base_url=self.url, api_key=f"tml-trainer-{number}") as service:
            client = service.create_lora_training_client(MODEL, rank=8)
            while not self.over:
                forward = client.forward_backward(data, "cross_entropy")
                client.optim_step(types.AdamParams(learning_rate=1e-4)).result()
                forward.result()
                self.count(steps=1)

    def guarded(self, work: Any, number: int) -> None:
        try:
            work(number)
        except Exception as error:
            self.errors.append(f"{work.__name__} {number}: {type(error).__name__}: {error}")


WATCH = """
import json, sys, time, urllib.request
url, until, seconds = sys.argv[1], time.monotonic() + float(sys.argv[2]), []
while time.monotonic() < until:
    started = time.perf_counter()
    with urllib.request.urlopen(url, timeout=30) as answer:
        answer.read()
    seconds.append(time.perf_counter() - started)
    time.sleep(0.05)
print(json.dumps(seconds))
"""


def watch(load: Load, pid: int, seconds: float) -> tuple[list[float], list[float]]:
    """Seconds per cheap request, seen from a process of its own, and the server's megabytes."""
    command = [sys.executable, "-c", WATCH, f"{load.url}/api/v1/healthz", str(seconds)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as watcher:
        megabytes = []
        while not load.over:
            megabytes.append(_resident(pid))
            time.sleep(0.2)
        beats, _ = watcher.communicate()
    return json.loads(beats), megabytes


def _resident(pid: int) -> float:
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 1e6


def run(url: str, pid: int, seconds: float) -> None:
    load = Load(url, seconds)
    work = [(load.sample, number) for number in range(SAMPLERS)]
    work += [(load.train, number) for number in range(TRAINERS)]
    threads = [threading.Thread(target=load.guarded, args=each) for each in work]
    for thread in threads:
        thread.start()
    beats, memory = watch(load, pid, seconds)
    for thread in threads:
        thread.join()
    slow = statistics.quantiles(beats, n=100)[98]
    settled = memory[len(memory) // 3 :]
    half = len(settled) // 2
    growth = statistics.mean(settled[half:]) - statistics.mean(settled[:half])
    write(
        "server_load",
        f"{SAMPLERS} clients sampling and {TRAINERS} training for {seconds:.0f} s",
        [
            Row("errors", float(len(load.errors)), "", target="0"),
            Row("cheap request, p99", slow * 1e3, "ms", target="≤50 ms"),
            Row("server's memory beside the engine", max(memory), "MB", target="≤600 MB"),
            Row("growth, second half against first", growth, "MB", target="flat"),
            Row("samples", load.samples / seconds, "/s", higher_is_better=True),
            Row("training steps", load.steps / seconds, "/s", higher_is_better=True),
        ],
        "\n".join(load.errors[:10]),
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=60.0)
    options = parser.parse_args()
    resolve(MODEL, default_cache(os.environ), os.environ)
    with tempfile.TemporaryDirectory() as home:
        command = [sys.executable, "-m", "tinkex", "serve", "--home", home]
        command += ["--port", str(PORT), "--model", MODEL, "--dtype", "float32"]
        with subprocess.Popen(command, stdout=subprocess.DEVNULL) as server:
            try:
                url = f"http://127.0.0.1:{PORT}"
                _wait(url)
                run(url, server.pid, options.seconds)
            finally:
                server.terminate()
                server.wait()


def _wait(url: str) -> None:
    while True:
        try:
            with urllib.request.urlopen(f"{url}/api/v1/healthz", timeout=5):
                return
        except (urllib.error.URLError, OSError):
            time.sleep(0.1)


if __name__ == "__main__":
    main()
