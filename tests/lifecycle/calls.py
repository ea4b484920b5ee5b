"""The requests one tenant makes, over a socket. Says what was answered; expects nothing."""

from __future__ import annotations

import time
from typing import Any

import httpx

from support.served import forward_body
from support.server_process import MODEL

_ANSWER_S = 120.0
_PROTOBUF = "application/x-protobuf"


class Calls:
    """One key's view of a server."""

    def __init__(self, url: str, key: str) -> None:
        self._client = httpx.Client(
            base_url=f"{url}/api/v1/", headers={"x-api-key": key}, timeout=60.0
        )

    def close(self) -> None:
        self._client.close()

    def send(self, method: str, path: str, body: Any = None) -> httpx.Response:
        return self._request(method, path, {} if body is None else {"json": body})

    def pass_(self, run: str, seq: int, batch: int) -> httpx.Response:
        content = forward_body(run, seq, first=3 + 5 * batch, length=4 + 3 * batch)
        return self._request(
            "POST", "forward_backward", {"content": content, "headers": {"content-type": _PROTOBUF}}
        )

    def result(self, request_id: str) -> Any:
        """What a future ends with: JSON, the bytes of a binary result, or a status."""
        end = time.monotonic() + _ANSWER_S
        while time.monotonic() < end:
            answer = self.send("POST", "retrieve_future", {"request_id": request_id})
            if answer.status_code == 408:
                continue
            if answer.status_code != 200:
                return answer.status_code
            binary = _PROTOBUF in answer.headers["content-type"]
            return answer.content if binary else answer.json()
        raise AssertionError(f"{request_id} did not end within {_ANSWER_S} s")

    def create_run(self, session: str, number: int, rank: int, seed: int) -> httpx.Response:
        lora = {"rank": rank, "seed": seed}
        asked = {"session_id": session, "model_seq_id": number, "base_model": MODEL}
        return self.send("POST", "create_model", {**asked, "lora_config": lora})

    def sample(self, sampler: str, seq: int) -> httpx.Response:
        """Greedy, with everything said about it that never changes."""
        return self.send(
            "POST",
            "asample",
            {
                "sampling_session_id": sampler,
                "seq_id": seq,
                "prompt": {"chunks": [{"tokens": list(range(5, 25, 3))}]},
                "sampling_params": {"max_tokens": 5, "temperature": 0.0, "stop": []},
                "prompt_logprobs": True,
            },
        )

    def _request(self, method: str, path: str, content: dict[str, Any]) -> httpx.Response:
        """Again when the connection was cut: the server may just have died and come back."""
        for attempt in range(3):
            try:
                return self._client.request(method, path, **content)
            except httpx.TransportError:
                if attempt == 2:
                    raise
                time.sleep(0.2)
        raise AssertionError("unreachable")
