"""The items of a response as pieces make them, and the events that tell of it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from tinkex.server.endpoints.service import new_id
from tinkex.text.formats.pieces import Arguments, Call, Content, Piece, Reasoning

_KINDS = {Content: "message", Reasoning: "reasoning", Call: "function_call"}
Event = dict[str, Any]


class Items:
    """One item is open at a time; `done` are those that are complete."""

    def __init__(self) -> None:
        self.done: list[dict[str, Any]] = []
        self._item: dict[str, Any] | None = None
        self._text = ""
        self._drawn: list[dict[str, Any]] = []
        self._scored: list[dict[str, Any]] = []
        """Logprobs of drawn tokens: not told yet, and of the open item."""

    @property
    def reasoning(self) -> str:
        """All reasoning so far."""
        found = [item for item in self.done if item["type"] == "reasoning"]
        return "".join(part["text"] for item in found for part in item["content"])

    def take(self, piece: Piece) -> Iterator[Event]:
        if isinstance(piece, Arguments):
            yield self._delta("response.function_call_arguments.delta", piece.text)
            return
        kind = _KINDS[type(piece)]
        if isinstance(piece, Call) or self._item is None or self._item["type"] != kind:
            yield from self.close()
            yield from self._open(kind, piece)
        if isinstance(piece, Content):
            scored, self._drawn = self._drawn, []
            self._scored += scored
            yield {**self._delta("response.output_text.delta", piece.text), "logprobs": scored}
        elif isinstance(piece, Reasoning):
            yield self._delta("response.reasoning_text.delta", piece.text)

    def close(self, status: str = "completed") -> Iterator[Event]:
        """The open item is complete, or all there will be of it."""
        if self._item is None:
            return
        item, text = self._item, self._text
        place = self._place()
        if item["type"] == "function_call":
            item["arguments"] = text
            values = {"name": item["name"], "arguments": text}
            yield {"type": "response.function_call_arguments.done", **place, **values}
        else:
            part = _part(item["type"], text)
            item["content"] = [part]
            if item["type"] == "message":
                part["logprobs"] = [*self._scored, *self._drawn]
                self._scored, self._drawn = [], []
                inside = {**place, "content_index": 0}
                values = {"text": text, "logprobs": part["logprobs"]}
                yield {"type": "response.output_text.done", **inside, **values}
                yield {"type": "response.content_part.done", **inside, "part": part}
            else:
                inside = {**place, "content_index": 0, "text": text}
                yield {"type": "response.reasoning_text.done", **inside}
        item["status"] = status
        yield {
            "type": "response.output_item.done",
            "output_index": len(self.done),
            "item": dict(item),
        }
        self.done.append(item)
        self._item, self._text = None, ""

    def draw(self, logprobs: list[dict[str, Any]]) -> None:
        """Logprobs of tokens that were drawn, to be told with the next text there is."""
        self._drawn += logprobs

    def score(self, logprobs: list[dict[str, Any]]) -> None:
        """Logprobs of all drawn tokens, with the first message that was drawn."""
        for item in self.done:
            if item["type"] == "message":
                item["content"][0]["logprobs"] = logprobs
                return

    def _open(self, kind: str, piece: Piece) -> Iterator[Event]:
        self._item = _item(kind, piece.name if isinstance(piece, Call) else "")
        added = {"output_index": len(self.done), "item": dict(self._item)}
        yield {"type": "response.output_item.added", **added}
        if kind == "message":
            inside = {**self._place(), "content_index": 0, "part": _part(kind, "")}
            yield {"type": "response.content_part.added", **inside}

    def _delta(self, kind: str, text: str) -> Event:
        self._text += text
        inside = {} if "arguments" in kind else {"content_index": 0}
        return {"type": kind, **self._place(), **inside, "delta": text}

    def _place(self) -> dict[str, Any]:
        assert self._item is not None
        return {"item_id": self._item["id"], "output_index": len(self.done)}


def _item(kind: str, name: str) -> dict[str, Any]:
    if kind == "function_call":
        call = {"call_id": new_id("call_"), "name": name, "arguments": ""}
        return {"type": kind, "id": new_id("fc_"), "status": "in_progress", **call}
    if kind == "reasoning":
        return {"type": kind, "id": new_id("rs_"), "summary": [], "content": []}
    head = {"type": kind, "id": new_id("msg_"), "status": "in_progress"}
    return {**head, "role": "assistant", "content": []}


def _part(kind: str, text: str) -> dict[str, Any]:
    if kind == "reasoning":
        return {"type": "reasoning_text", "text": text}
    return {"type": "output_text", "text": text, "annotations": [], "logprobs": []}
