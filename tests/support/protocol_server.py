"""A small server of the whole protocol, for clients to be tested against.

It answers every route with values that can be predicted from the request, records what it was
asked as (method, path, decoded body), and can be told to misbehave through its socket server. It
trains nothing.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import re
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from support.protocol_bodies import PROTOBUF, decoded, prompt_logprobs, tensor
from support.socket_server import Fault, Received, Reply, SocketServer
from tinkex.types import SampledSequence, SampleResponse
from tinkex.wire.protobuf import (
    encode_forward_backward_output,
    encode_sample_response,
)

TIME = "2026-01-02T03:04:05+00:00"
RUN = {
    "training_run_id": "s1:train:0",
    "base_model": "acme/tiny",
    "model_owner": "me",
    "is_lora": True,
    "lora_rank": 8,
    "last_request_time": TIME,
}
CHECKPOINT = {
    "checkpoint_id": "weights/one",
    "checkpoint_type": "training",
    "time": TIME,
    "tinker_path": "tinker://s1:train:0/weights/one",
}
CURSOR = {"offset": 0, "limit": 20, "total_count": 1}


class Call(NamedTuple):
    """One recorded request. ``body`` is decoded JSON, or the fields of a protobuf message."""

    method: str
    path: str
    body: Any


class ProtocolServer:
    """Use as a context manager; ``url`` is where it listens."""

    def __init__(self, **flags: Any) -> None:
        self.flags: dict[str, Any] = flags
        self.dynamic_flags: dict[str, Any] = {}
        self.calls: list[Call] = []
        self.requests: list[Received] = []
        self.pending_polls = 0
        self.queue_state: dict[str, Any] = {"queue_state": "active"}
        self.metadata_first = False
        self.json_results = False
        self.hold: asyncio.Event | None = None
        self._results: dict[str, Callable[[], Reply]] = {}
        self._pending: dict[str, int] = {}
        self._ids = itertools.count(1)
        self._sessions = itertools.count(1)
        self._completions: dict[str, list[str]] = {}
        self._completed = asyncio.Condition()
        self._socket = SocketServer(self._handle, self._record)

    # ---- running and looking

    def __enter__(self) -> ProtocolServer:
        self._socket.__enter__()
        return self

    def __exit__(self, *exc: object) -> None:
        self._socket.__exit__(*exc)
        if self._socket.bugs and exc[0] is None:
            raise self._socket.bugs[0]

    @property
    def url(self) -> str:
        return self._socket.url

    @property
    def open_connections(self) -> int:
        return self._socket.open_connections

    def listen_on(self, port: int) -> ProtocolServer:
        self._socket.port = port
        return self

    def fail(self, path: str, *faults: Fault, when: bytes = b"") -> None:
        self._socket.fail(path, *faults, when=when)

    def asked(self, path: str) -> list[Call]:
        """The recorded requests whose path ends with this."""
        return [call for call in self.calls if call.path.partition("?")[0].endswith(path)]

    def count(self, path: str) -> int:
        return sum(request.path.endswith(path) for request in self.requests)

    # ---- answering

    def _record(self, request: Received) -> None:
        self.requests.append(request)
        path = f"{request.path}?{request.query}" if request.query else request.path
        self.calls.append(Call(request.method, path, decoded(request)))

    async def _handle(self, request: Received) -> Reply:
        body = decoded(request)
        path = request.path.removeprefix("/api/v1/")
        for pattern, method in _ROUTES:
            match = re.fullmatch(pattern, f"{request.method} {path}")
            if match:
                return await getattr(self, method)(request, body, *match.groups())
        return _json({"detail": f"no route {path}"}, 404)

    async def config(self, request: Received, body: Any) -> Reply:
        return _json(self.flags)

    async def dynamic_config(self, request: Received, body: Any) -> Reply:
        return _json(self.dynamic_flags)

    async def token(self, request: Received, body: Any) -> Reply:
        return _json({"jwt": jwt(sub="user:1", org_id="org", email="me@example.com")})

    async def capabilities(self, request: Received, body: Any) -> Reply:
        return _json({"supported_models": [{"model_name": "acme/tiny", "trainable": True}]})

    async def create_session(self, request: Received, body: Any) -> Reply:
        return _json({"type": "create_session", "session_id": f"s{next(self._sessions)}"})

    async def heartbeat(self, request: Received, body: Any) -> Reply:
        return _json({"type": "session_heartbeat"})

    async def empty(self, request: Received, body: Any, *_: str) -> Reply:
        return Reply(204, b"", "")

    async def telemetry(self, request: Received, body: Any) -> Reply:
        return _json({"status": "accepted"})

    async def create_model(self, request: Received, body: Any) -> Reply:
        model = f"{body['session_id']}:train:{body['model_seq_id']}"
        result = _json({"model_id": model, "type": "create_model"})
        return self._promise(lambda: result, model_id=model)

    async def get_info(self, request: Received, body: Any) -> Reply:
        data = {"arch": "tiny", "model_name": "acme/tiny", "tokenizer_id": "acme/tok:rev"}
        return _json({"model_id": body["model_id"], "model_data": data, "is_lora": True})

    async def forward_backward(self, request: Received, body: Any) -> Reply:
        outputs = [
            {"logprobs": tensor(-np.asarray(datum["inputs"]["target_tokens"]) / 10.0)}
            for datum in body["data"]
        ]
        loss = float(sum(-output["logprobs"].to_numpy().sum() for output in outputs))
        metrics = {"loss:sum": loss, "datums:sum": float(len(outputs)), "seq:max": body["seq_id"]}
        return self._promise(lambda: self._training_reply(outputs, metrics))

    def _training_reply(self, outputs: Any, metrics: dict[str, float]) -> Reply:
        if self.json_results:
            fields = [
                {"logprobs": {"data": o["logprobs"].data, "dtype": "float32"}} for o in outputs
            ]
            return _json(
                {"loss_fn_output_type": "X", "loss_fn_outputs": fields, "metrics": metrics}
            )
        arrays = [{"logprobs": output["logprobs"].to_numpy()} for output in outputs]
        return Reply(200, encode_forward_backward_output(arrays, metrics), PROTOBUF)

    async def optim_step(self, request: Received, body: Any) -> Reply:
        return self._promise(lambda: _json({"metrics": {"grad_norm": 0.5}}))

    async def save_weights(self, request: Received, body: Any) -> Reply:
        return self._saved(body, "weights")

    async def save_external(self, request: Received, body: Any) -> Reply:
        return self._saved(body, "external_weights")

    async def save_for_sampler(self, request: Received, body: Any) -> Reply:
        if body.get("path") is not None:
            return self._saved(body, "sampler_weights")
        session = body["model_id"].partition(":")[0]
        sampler = f"{session}:sample:{body['sampling_session_seq_id']}"
        return self._promise(lambda: _json({"sampling_session_id": sampler}))

    def _saved(self, body: Any, kind: str) -> Reply:
        path = f"tinker://{body['model_id']}/{kind}/{body['path']}"
        return self._promise(lambda: _json({"path": path}))

    async def load_weights(self, request: Received, body: Any) -> Reply:
        return self._promise(lambda: _json({"path": body["path"]}))

    async def create_custom_loss(self, request: Received, body: Any) -> Reply:
        return self._promise(lambda: _json({"loss_id": "loss-1", "type": "create_custom_loss"}))

    async def weights_info(self, request: Received, body: Any) -> Reply:
        return _json({"base_model": "acme/tiny", "is_lora": True, "lora_rank": 8})

    async def copy_weights(self, request: Received, body: Any) -> Reply:
        return _json({"tinker_path": "tinker://copy:train:0/weights/one"})

    async def create_sampling_session(self, request: Received, body: Any) -> Reply:
        sampler = f"{body['session_id']}:sample:{body['sampling_session_seq_id']}"
        return _json({"type": "create_sampling_session", "sampling_session_id": sampler})

    async def join_sampling_session(self, request: Received, body: Any) -> Reply:
        return _json({"type": "join_sampling_session", "client_counter": next(self._ids) + 6})

    async def asample(self, request: Received, body: Any) -> Reply:
        request_id = f"{body['sampling_session_id']}:{body['seq_id']}"
        ids = [f"{request_id}:{i}" for i in range(body["num_samples"])]
        reply = self._promise(
            lambda: self._sample_reply(body), request_id=request_id, sample_sequence_ids=ids
        )
        async with self._completed:
            self._completions.setdefault(body["sampling_session_id"], []).append(request_id)
            self._completed.notify_all()
        return reply

    def _sample_reply(self, body: Any) -> Reply:
        tokens = [token for chunk in body["prompt"]["chunks"] for token in chunk["tokens"]]
        length = min(body["sampling_params"].get("max_tokens") or 4, 4)
        drawn = [expected_tokens(tokens, i, length) for i in range(body["num_samples"])]
        if self.json_results:
            sequences = [
                {"tokens": d, "logprobs": [-0.5] * len(d), "stop_reason": "length"} for d in drawn
            ]
            return _json({"sequences": sequences, "prompt_logprobs": None})
        response = SampleResponse(
            sequences=[
                SampledSequence(
                    stop_reason="length",
                    sequence_id="",
                    tokens_np=np.array(d, dtype=np.int32),
                    logprobs_np=np.full(len(d), -0.5, dtype=np.float32),
                )
                for d in drawn
            ],
            prompt_logprobs_np=prompt_logprobs(tokens, body),
        )
        return Reply(200, encode_sample_response(response), PROTOBUF)

    async def sampler(self, request: Received, body: Any, sampler_id: str) -> Reply:
        return _json({"sampler_id": sampler_id, "base_model": "acme/tiny"})

    # ---- futures

    def _promise(
        self, result: Callable[[], Reply], request_id: str | None = None, **fields: Any
    ) -> Reply:
        request_id = request_id or f"f{next(self._ids)}"
        self._results[request_id] = result
        self._pending[request_id] = self.pending_polls
        return _json({"request_id": request_id, **fields})

    async def retrieve_future(self, request: Received, body: Any) -> Reply:
        request_id = body["request_id"]
        if self.hold is not None:
            await self.hold.wait()
        if self._pending.get(request_id, 0) > 0:
            self._pending[request_id] -= 1
            return _json({"type": "try_again", "request_id": request_id, **self.queue_state}, 408)
        result = self._results[request_id]()
        if self.metadata_first and body["allow_metadata_only"]:
            return _json({"status": "complete_metadata", "response_payload_size": len(result.body)})
        return result

    async def retrieve_futures(self, request: Received, body: Any) -> Reply:
        target = body["target"]["sampling_session_id"]
        cursor = body["prev_cursor"]
        async with self._completed:
            try:
                async with asyncio.timeout(0.2):
                    await self._completed.wait_for(
                        lambda: len(self._completions.get(target, [])) > cursor
                    )
            except TimeoutError:
                pass
            done = self._completions.get(target, [])[cursor:]
        completions = [{"state": "finished", "request_id": item} for item in done]
        return _json({"completions": completions, "cursor": cursor + len(done)})

    # ---- records

    async def runs(self, request: Received, body: Any) -> Reply:
        return _json({"training_runs": [RUN], "cursor": CURSOR})

    async def run(self, request: Received, body: Any, run_id: str) -> Reply:
        return _json({**RUN, "training_run_id": run_id})

    async def checkpoints(self, request: Received, body: Any, *_: str) -> Reply:
        return _json({"checkpoints": [CHECKPOINT], "cursor": CURSOR})

    async def external_urls(self, request: Received, body: Any, *_: str) -> Reply:
        return _json({"urls": {"a.safetensors": "http://127.0.0.1/a"}, "expires": TIME})

    async def archive(self, request: Received, body: Any, *_: str) -> Reply:
        return _json({"url": "http://127.0.0.1/archive.tar", "expires": TIME})

    async def sessions(self, request: Received, body: Any) -> Reply:
        return _json({"sessions": ["s1"]})

    async def session(self, request: Received, body: Any, session_id: str) -> Reply:
        return _json({"training_run_ids": [f"{session_id}:train:0"], "sampler_ids": []})

    async def search(self, request: Received, body: Any) -> Reply:
        return _json({"sessions": []})

    async def trace(self, request: Received, body: Any, *_: str) -> Reply:
        return _json({"status": "ready", "url": "http://127.0.0.1/trace"})

    async def audit(self, request: Received, body: Any) -> Reply:
        return _json({"entries": [{"timestamp": TIME, "event": "created"}]})

    async def billing(self, request: Received, body: Any) -> Reply:
        return _json({"data": []})

    async def storage(self, request: Received, body: Any) -> Reply:
        return _json({"data": []})


_RUN = r"training_runs/([^/]+)"
_ONE = _RUN + r"/checkpoints/([^/]+/[^/]+)"
_ROUTES = [
    ("POST client/config", "config"),
    ("POST client/dynamic_config", "dynamic_config"),
    ("POST auth/token", "token"),
    ("GET get_server_capabilities", "capabilities"),
    ("POST create_session", "create_session"),
    ("POST session_heartbeat", "heartbeat"),
    (r"POST sessions/([^/]+)/finish", "empty"),
    ("POST telemetry", "telemetry"),
    ("POST create_model", "create_model"),
    ("POST get_info", "get_info"),
    ("POST forward_backward", "forward_backward"),
    ("POST optim_step", "optim_step"),
    ("POST save_weights", "save_weights"),
    ("POST save_weights_external", "save_external"),
    ("POST save_weights_for_sampler", "save_for_sampler"),
    ("POST load_weights", "load_weights"),
    ("POST create_custom_loss", "create_custom_loss"),
    ("POST weights_info", "weights_info"),
    ("POST copy_weights", "copy_weights"),
    ("POST create_sampling_session", "create_sampling_session"),
    ("POST join_sampling_session", "join_sampling_session"),
    ("POST asample", "asample"),
    (r"GET samplers/([^/]+)", "sampler"),
    ("POST retrieve_future", "retrieve_future"),
    ("POST retrieve_futures", "retrieve_futures"),
    ("POST cancel_future", "empty"),
    ("GET training_runs", "runs"),
    (rf"GET {_RUN}", "run"),
    (rf"GET {_RUN}/checkpoints", "checkpoints"),
    ("GET checkpoints", "checkpoints"),
    (rf"DELETE {_ONE}", "empty"),
    (rf"(?:POST|DELETE) {_ONE}/publish", "empty"),
    (rf"PUT {_ONE}/ttl", "empty"),
    (rf"GET {_ONE}/external_weights_urls", "external_urls"),
    (rf"GET {_ONE}/archive", "archive"),
    ("GET sessions", "sessions"),
    ("POST sessions/search", "search"),
    (r"GET sessions/([^/]+)", "session"),
    (r"PUT sessions/([^/]+)/project", "empty"),
    (r"GET sessions/([^/]+)/trace_export", "trace"),
    ("GET audit", "audit"),
    ("GET billing/usage/events", "billing"),
    ("GET billing/usage/checkpoints/current", "storage"),
]


def expected_tokens(prompt: list[int], index: int, length: int) -> list[int]:
    """What this server samples: derived from the prompt, so that mixed-up answers are seen."""
    return [(sum(prompt) + index + step) % 50_000 for step in range(length)]


def jwt(**claims: Any) -> str:
    """An unsigned token that is valid for an hour unless the claims say otherwise."""
    import base64
    import time

    def part(value: Any) -> str:
        return base64.urlsafe_b64encode(json.dumps(value).encode()).decode().rstrip("=")

    payload = {"exp": time.time() + 3600, **claims}
    return f"{part({'alg': 'none'})}.{part(payload)}.signature"


def _json(value: Any, status: int = 200) -> Reply:
    return Reply(status, json.dumps(value).encode())
