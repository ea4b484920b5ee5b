"""What an object store costs: weights that are not in the cache, and writing, against plain files.

    python benchmarks/objects.py

The adapter has the tensors of an 8B model's at rank 32. The S3 service is `rclone serve s3` on this
machine. The files are fetched, checked against their hashes, and read as the engine reads them.
What an engine then does with them is not included: `first_answer.py` measures a sampler's first
answer through a server. The service's own limit is measured in the same turns: the same bytes by
one connection, and in parts by several, discarded on arrival. The service shares this machine's
cores with the processes that fetch.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import statistics
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

import torch
from report import Row, write

from support.object_service import BUCKET, object_service
from tinkex.engine.adapters.layout import AdapterWeights
from tinkex.engine.adapters.peft_files import read_adapter, write_adapter
from tinkex.engine.process.fetched_weights import FetchedWeights
from tinkex.engine.process.parts import PART_BYTES
from tinkex.server.storage import manifest
from tinkex.server.storage.blobs import BlobStore, SegmentBlobs
from tinkex.server.storage.folders import Folders
from tinkex.server.storage.objects.blobs import ObjectBlobs
from tinkex.server.storage.objects.cache import Cache
from tinkex.server.storage.objects.folders import ObjectFolders
from tinkex.server.storage.objects.store import ObjectStore

RANK, LAYERS = 32, 36
SHAPES = {
    "self_attn.q_proj": (4096, 4096),
    "self_attn.k_proj": (4096, 1024),
    "self_attn.v_proj": (4096, 1024),
    "self_attn.o_proj": (4096, 4096),
    "mlp.gate_proj": (4096, 12288),
    "mlp.up_proj": (4096, 12288),
    "mlp.down_proj": (12288, 4096),
}
"""Of Qwen3-8B: in and out of each module."""
BLOB, BLOBS, AT_ONCE = bytes(256 * 1024), 64, 8
ROUNDS, TURNS = 3, 9
CPU = torch.device("cpu")


def adapter(folder: Path) -> int:
    """Write the adapter; its bytes."""
    factors = {
        (layer, name): (torch.randn(RANK, inner), torch.randn(outer, RANK))
        for layer in range(LAYERS)
        for name, (inner, outer) in SHAPES.items()
    }
    write_adapter(AdapterWeights(RANK, 1.0, factors), folder)
    return manifest.write(folder).size_bytes


def took(work: Callable[[], object]) -> float:
    begun = time.perf_counter()
    work()
    return time.perf_counter() - begun


def sealing(folders: Folders, source: Path) -> float:
    """Seconds until a written folder is there to stay."""
    draft = folders.begin()
    for path in source.iterdir():
        shutil.copyfile(path, draft / path.name)
    return took(lambda: folders.seal(draft))


def cold(folders: ObjectFolders, name: str) -> tuple[float, float]:
    """Seconds until the adapter is read from an empty cache: files here, and all."""
    shutil.rmtree(folders.path(name))
    begun = time.perf_counter()
    path = asyncio.run(folders.here(name))
    here = time.perf_counter() - begun
    read_adapter(path, CPU)
    return here, time.perf_counter() - begun


def elsewhere(folders: ObjectFolders, name: str) -> float:
    """Seconds until an engine on another host has read it by its links."""
    ref = asyncio.run(folders.reference(name))
    far = type(ref)("/not/on/this/host", ref.digest, ref.files)
    fetched = FetchedWeights()
    try:
        return took(lambda: read_adapter(Path(fetched.bring(far, "me").path), CPU))
    finally:
        fetched.close()


def thrown_away(url: str, size: int, part: int) -> float:
    """Seconds the service takes to give the same bytes to somebody who does nothing with them."""

    def read(start: int) -> None:
        end = min(size, start + part) - 1
        asked = urllib.request.Request(url, headers={"Range": f"bytes={start}-{end}"})
        block = bytearray(1 << 20)
        with urllib.request.urlopen(asked) as answer:
            while answer.readinto(block):
                pass

    with ThreadPoolExecutor(AT_ONCE) as pool:
        return took(lambda: list(pool.map(read, range(0, size, part))))


class Ways(NamedTuple):
    """Seconds each way took, one turn's or all turns'."""

    here: Any
    first: Any
    far: Any
    near: Any
    one_stream: Any
    in_parts: Any


def turn(stored: ObjectFolders, name: str, shared: ObjectFolders, near: str) -> Ways:
    file = max(asyncio.run(stored.reference(name)).files, key=lambda link: link.size)
    return Ways(
        *cold(stored, name),
        elsewhere(stored, name),
        cold(shared, near)[1],
        thrown_away(file.url, file.size, file.size),
        thrown_away(file.url, file.size, PART_BYTES),
    )


def many_blobs(blobs: BlobStore) -> float:
    """Blobs a second, several at once, each durable."""

    def one(_: int) -> None:
        blobs.put(blobs.reserve(len(BLOB)), BLOB)

    with ThreadPoolExecutor(AT_ONCE) as pool:
        return BLOBS / took(lambda: list(pool.map(one, range(BLOBS))))


def measure(root: Path) -> list[Row]:
    source = root / "adapter"
    source.mkdir()
    size = adapter(source) / 1e6
    plain = Folders(root / "plain")
    stored = ObjectFolders(
        root / "cache", ObjectStore(f"s3://{BUCKET}/x"), "weights", Cache(1 << 40)
    )
    files = [sealing(plain, source) for _ in range(ROUNDS)]
    objects = [sealing(stored, source) for _ in range(ROUNDS)]
    name = sorted(stored.names())[0]
    local = [took(lambda: read_adapter(source, CPU)) for _ in range(ROUNDS)]
    checked = [took(lambda: manifest.verify(source)) for _ in range(ROUNDS)]
    shared = ObjectFolders(
        root / "near", ObjectStore(f"file://{root}/shared"), "weights", Cache(1 << 40)
    )
    near_write = sealing(shared, source)
    near = sorted(shared.names())[0]
    turns = Ways(*zip(*(turn(stored, name, shared, near) for _ in range(TURNS)), strict=True))
    blobs = many_blobs(ObjectBlobs(ObjectStore(f"s3://{BUCKET}/x"), "payloads"))
    segments = many_blobs(SegmentBlobs(root / "segments"))
    median, least = statistics.median, min
    return [
        Row("adapter of an 8B model, rank 32", size, "MB"),
        Row("local disk: read", median(local), "s"),
        Row("its hashes checked", median(checked), "s"),
        Row("object store, cold cache: here and read", median(turns.first), "s"),
        Row("the least of its turns", least(turns.first), "s"),
        Row("of that: the files here", median(turns.here), "s"),
        Row("another host, by links: fetched, checked and read", median(turns.far), "s"),
        Row("the least of its turns", least(turns.far), "s"),
        Row("a folder as the store, which leaves the service out: here and read",
            median(turns.near), "s"),
        Row("the service alone: the same bytes thrown away, one connection",
            median(turns.one_stream), "s"),
        Row("the service alone: the same bytes thrown away, in parts", median(turns.in_parts), "s"),
        Row("weights written, against files", size / median(objects), "MB/s",
            size / median(files), higher_is_better=True),
        Row("weights written to a folder as the store, against files", size / near_write, "MB/s",
            size / median(files), higher_is_better=True),
        Row(f"256 KiB bodies made durable, {AT_ONCE} at once, against files", blobs, "/s",
            segments, higher_is_better=True),
    ]  # fmt: skip


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        with object_service(root / "s3") as service:
            # Not through the proxy that tests cut: it would share this process's interpreter.
            os.environ["AWS_ENDPOINT_URL"] = f"http://127.0.0.1:{service.port}"
            rows = measure(root)
    write("objects", "An object store against plain files", rows, __doc__ or "")


if __name__ == "__main__":
    main()
