"""One engine on Ray, seen from the process that speaks to it: a stream on one side, an actor on the
other. Frames are passed on in parts, and never unpickled on the way.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import socket
import threading
from collections import deque
from pathlib import Path
from typing import Any

import ray

from tinkex.cluster.link import Link, call, kill
from tinkex.cluster.parts import pack, unpack
from tinkex.cluster.placement import Placement
from tinkex.cluster.served_folders import NotServed, ServedFolders, content_of
from tinkex.engine.frames import Closed, receive_frame, receive_parts, send_frame, send_parts
from tinkex.engine.messages import Failed, Waiting
from tinkex.engine.process.at_once import STARTUP_OP

SILENCE_S = float(os.environ.get("TINKEX_RAY_SILENCE_S") or 20.0)
"""An engine that says nothing for so long is taken for dead: its node, or the way to it. Whatever
it says later, nobody hears."""
_LOADING_SILENCE_S = 300.0
"""The same before the engine's first event. Whoever loads libraries from a cold disk may not
answer anything meanwhile, and Ray itself notices when the node is gone."""
_LOOK_S = 1.0
"""Between two looks at why an engine has no place yet."""


class Lost(Exception):
    """There will be no more of this engine; the text says why."""


def refuse(stream: socket.socket, why: str) -> None:
    """Say that there is no engine, or none any more."""
    send_frame(stream, Failed(STARTUP_OP, "server", why))


class PlacedEngine:
    """Lives as long as its stream and its actor both do."""

    def __init__(self, stream: socket.socket, link: Link) -> None:
        self._stream, self._link = stream, link
        self._node = ""

    def live(self) -> None:
        with self._stream, contextlib.suppress(Closed, OSError):
            try:
                self._run(receive_frame(self._stream))
            except (Closed, OSError):
                raise
            except Exception as error:
                refuse(self._stream, str(error))
                if not isinstance(error, Lost):
                    raise

    def _run(self, placement: Placement) -> None:
        needs = self._link.needs_of(placement)
        actor = self._link.create(needs)
        reader = threading.Thread(target=self._pass_commands, args=(actor,), daemon=True)
        reader.start()
        try:
            self._settle(actor, placement, needs)
            folders = ServedFolders(placement.config.model, placement.home)
            away = not (placement.shares_files or self._link.is_here(actor))
            content = content_of(Path(folders.model)) if away else ""
            call(actor.begin, "commands", placement.config, content)
            self._pass_events(actor, folders)
        finally:
            kill(actor)
            with contextlib.suppress(OSError):
                self._stream.shutdown(socket.SHUT_RD)
            reader.join()

    def _settle(self, actor: Any, placement: Placement, needs: dict[str, float]) -> None:
        """Wait until the actor has a node, and say what for."""
        begun = call(actor.arrive, "commands")
        self._link.waits(1)
        try:
            while not ray.wait([begun], timeout=_LOOK_S)[0]:
                send_frame(self._stream, Waiting(self._link.why_it_waits(needs)))
        finally:
            self._link.waits(-1)
        version, self._node = self._answer(begun)
        if version != placement.version:
            raise Lost(
                f"Ray node {self._node} has tinkex {version}, the server {placement.version}: "
                "install the same on all"
            )
        send_frame(self._stream, Waiting(f"the engine is loading the model on {self._node}"))

    def _pass_commands(self, actor: Any) -> None:
        """Until the server closes the stream, which ends the engine."""
        try:
            for number in itertools.count():
                parts = pack(receive_parts(self._stream))
                call(actor.send, "commands", number, parts)
        except (Closed, OSError):
            kill(actor)

    def _pass_events(self, actor: Any, folders: ServedFolders) -> None:
        """A call always waits with the actor for what comes next."""
        asked = call(actor.receive, "events")
        patience_s = max(SILENCE_S, _LOADING_SILENCE_S)
        while True:
            found, wants = self._answer(asked, patience_s)
            asked = call(actor.receive, "events")
            for number, path in wants:
                bring = (actor, folders, number, path)
                threading.Thread(target=self._bring, args=bring, daemon=True).start()
            for parts in found:
                send_parts(self._stream, unpack(parts))
                patience_s = SILENCE_S

    def _bring(self, actor: Any, folders: ServedFolders, number: int, path: str) -> None:
        """Send a folder, two parts at a time; what goes wrong is for the engine to say."""
        problem, under_way = "", deque[Any]()
        try:
            for part in folders.parts(path):
                under_way.append(call(actor.take, "files", number, *part))
                if len(under_way) > 1:
                    self._answer(under_way.popleft())
            for last in under_way:
                self._answer(last)
        except (NotServed, OSError, Lost) as error:
            problem = str(error)
        call(actor.end, "files", number, problem)

    def _answer(self, asked: Any, patience_s: float = SILENCE_S) -> Any:
        try:
            return ray.get(asked, timeout=patience_s)
        except ray.exceptions.GetTimeoutError:
            raise Lost(f"{self._place()} has not answered for {patience_s:.0f} s") from None
        except (ray.exceptions.ActorUnavailableError, ray.exceptions.ObjectLostError):
            raise Lost(f"{self._place()} cannot be reached") from None
        except ray.exceptions.ActorDiedError as error:
            gone = "its node has died" in str(error)
            what = "is gone" if gone else "has lost the engine's process"
            raise Lost(f"{self._place()} {what}") from None
        except ray.exceptions.RayError as error:
            raise Lost(f"Ray failed: {str(error).splitlines()[0]}") from None

    def _place(self) -> str:
        return f"Ray node {self._node}" if self._node else "the Ray node of the engine"
