"""Trains on a server whose home fills up: run as ``python full_filesystem.py HOME MODEL [SIZE]``.

With SIZE, HOME is a file system of that many MiB made for this run, which needs a mount namespace
of its own, and it is filled to the last byte while training is under way. Prints what was seen, as
JSON.
"""

import json
import os
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

import tinkex
from support.guarantee_data import batch, step
from support.server_process import MODEL, ServerProcess

BLOCK = 4096
ROOM = 768 * 1024
"""Enough for the log to go on for a while, too little for a checkpoint."""


class Ballast:
    """A file that takes all the room there is, or all but some."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / "ballast"

    def fill(self, leave: int) -> None:
        self.remove()
        file = os.open(self._path, os.O_WRONLY | os.O_CREAT)
        try:
            while (free := _free(self._path.parent) - leave) > 0:
                os.write(file, bytes(min(free, 1 << 20)))
        except OSError:
            pass  # the last block is taken
        finally:
            os.close(file)

    def remove(self) -> None:
        self._path.unlink(missing_ok=True)


def _free(folder: Path) -> int:
    status = os.statvfs(folder)
    return status.f_bavail * status.f_frsize


def main(home: Path, model: Path, size: int) -> dict[str, Any]:
    if size:
        subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size}m", "tmpfs", home], check=True)
    server = ServerProcess(home, model, snapshot_steps=2)
    server.start()
    try:
        server.wait_ready()
        with tinkex.ServiceClient(base_url=server.url, api_key="tml-a") as service:
            return _story(server, service, Ballast(home) if size else None)
    finally:
        server.end()


def _story(server: ServerProcess, service: Any, ballast: Ballast | None) -> dict[str, Any]:
    client = service.create_lora_training_client(MODEL, rank=64, seed=3)
    seen: dict[str, Any] = {}
    losses = [_loss(client, number) for number in range(3)]
    if ballast is not None:
        seen["save"] = _save_without_room(client, ballast)
        ballast.fill(leave=0)
        losses.append(_while_full(server, client, ballast, seen))
    else:
        losses.append(_loss(client, 3))
    losses += [_loss(client, number) for number in range(4, 7)]
    client.save_state("final").result()
    return {**seen, "losses": losses, "weights": server.weights_digest("final")}


def _loss(client: Any, number: int) -> float:
    return float(step(client, batch(number, 4)).metrics["loss:sum"])


def _save_without_room(client: Any, ballast: Ballast) -> str:
    """How a save ends for which there is no room."""
    ballast.fill(leave=ROOM)
    try:
        client.save_state("none").result(timeout=60)
    except tinkex.TinkerError as error:
        return str(error)
    finally:
        ballast.remove()
    return "it was saved"


def _while_full(
    server: ServerProcess, client: Any, ballast: Ballast, seen: dict[str, Any]
) -> float:
    """A step that begins on a full disk and ends once there is room."""
    ended: list[float] = []
    training = threading.Thread(target=lambda: ended.append(_loss(client, 3)))
    training.start()
    seen["refusal"] = _refusal(server)
    seen["health"] = _health(server)
    time.sleep(1.0)
    seen["waited"] = not ended
    ballast.remove()
    training.join(120)
    return ended[0]


def _health(server: ServerProcess) -> str:
    """What it is told to be; an answer of a moment before the disk was full may be given again."""
    asked = urllib.request.Request(f"{server.url}/api/v1/healthz")
    end = time.monotonic() + 5.0
    while (told := _answer(asked)) == "200" and time.monotonic() < end:
        time.sleep(0.2)
    return told


def _refusal(server: ServerProcess) -> str:
    """What who asks for something to be kept is told."""
    body = json.dumps({"tags": [], "user_metadata": {}}).encode()
    headers = {"x-api-key": "tml-b", "content-type": "application/json"}
    return _answer(urllib.request.Request(f"{server.url}/api/v1/create_session", body, headers))


def _answer(asked: urllib.request.Request) -> str:
    try:
        with urllib.request.urlopen(asked, timeout=60) as answer:
            return f"{answer.status}"
    except urllib.error.HTTPError as error:
        with error:
            return f"{error.code} {error.headers['retry-after']} {error.read().decode()}"


if __name__ == "__main__":
    mebibytes = int(sys.argv[3]) if len(sys.argv) > 3 else 0
    print(json.dumps(main(Path(sys.argv[1]), Path(sys.argv[2]), mebibytes)))
