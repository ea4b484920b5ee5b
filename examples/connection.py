"""The flags every example shares, and the client they lead to.

`--local` is the server embedded in tinkex: no account, no port. `--base-url` is a `tinkex serve`
or any other server of this API. With neither, the environment decides (`TINKER_BASE_URL`,
`TINKER_API_KEY`), which by default means the hosted service.
"""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import tinkex

TINY = "tinkex/tiny-llama"
SMALL = "HuggingFaceTB/SmolLM2-135M-Instruct"


@dataclass(frozen=True)
class Options:
    """What was typed. `out` is where curves and files go."""

    local: bool
    base_url: str | None
    model: str
    steps: int
    out: Path

    def connect(self, api_key: str | None = None) -> tinkex.ServiceClient:
        """A client for the chosen server; use it in a `with` block so that its session ends."""
        base_url = "local" if self.local else self.base_url
        return tinkex.ServiceClient(base_url=base_url, api_key=api_key)


def parse(about: str | None, *, model: str = TINY, steps: int = 10) -> Options:
    """Read the shared flags; `about` is the example's docstring."""
    parser = argparse.ArgumentParser(
        description=about, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    where = parser.add_mutually_exclusive_group()
    where.add_argument("--local", action="store_true", help="use the embedded server")
    where.add_argument("--base-url", help="address of a server of this API")
    parser.add_argument("--model", default=model, help="base model (default: %(default)s)")
    parser.add_argument("--steps", type=int, default=steps, help="training steps (%(default)s)")
    parser.add_argument("--out", type=Path, default=Path("demo-output"), help="folder for results")
    options = Options(**vars(parser.parse_args()))
    if options.local:
        os.environ.setdefault("TINKEX_MODELS", options.model)  # what the embedded server serves
    return options


@contextmanager
def timed(what: str) -> Iterator[None]:
    """Print how long a block took. For information only."""
    start = time.perf_counter()
    yield
    print(f"{what}: {time.perf_counter() - start:.1f} s")
