"""Carrying a SamplingClient to another process: pickled state, text handles, and shadow holders.

A shadow uses a session another process opened: it sends heartbeats for it but never creates or
finishes one. Pickles carry the API key, as they must; handles never do, and neither shows it.
"""

from __future__ import annotations

import base64
import json
import os
import secrets
import threading
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any
from weakref import WeakValueDictionary

from tinkex.client.api.retry import RetryConfig
from tinkex.client.redaction import SECRET_HEADERS
from tinkex.client.settings.config import Config
from tinkex.client.settings.timings import Timings
from tinkex.wire.limits import MAX_CLONE_ID

if TYPE_CHECKING:
    from tinkex.client.session.holder import InternalClientHolder

HANDLE_VERSION = 1


@dataclass(frozen=True)
class SamplerState:
    """Everything a copy of a SamplingClient needs."""

    session_id: str  # its session, which another process keeps alive
    sampling_session_id: str  # the sampler's own id
    base_url: str  # of the server
    headers: dict[str, str] = field(repr=False)  # sent with every request
    flags: dict[str, Any] = field(repr=False)  # the session's configuration
    dynamic_flags: dict[str, Any] = field(repr=False)  # the part of it that may change
    record_stability_info: bool = False  # whether samples carry what is needed to compare runs
    api_key: str | None = field(default=None, repr=False)  # so that a copy needs no configuration
    credential_command: str | None = field(default=None, repr=False)  # in place of a key
    proxy: str | None = field(default=None, repr=False)  # for requests to the server
    telemetry: bool = True  # whether errors are reported
    timings: Timings = field(default_factory=Timings)  # retries and polls
    retry_config: RetryConfig | None = None  # of samples; None: the usual one

    @classmethod
    def of(
        cls,
        holder: InternalClientHolder,
        sampling_session_id: str,
        record_stability_info: bool,
        retry_config: RetryConfig,
    ) -> SamplerState:
        config = holder.config
        if config.is_local:
            raise TypeError(
                "A SamplingClient of the embedded server cannot leave its process. "
                "Start a server with `tinkex serve` and use its URL to share samplers."
            )
        return cls(
            session_id=holder.session_id,
            sampling_session_id=sampling_session_id,
            base_url=config.base_url,
            headers=dict(config.headers),
            flags=holder.flags.model_dump(),
            dynamic_flags=holder.dynamic_flags.model_dump(),
            record_stability_info=record_stability_info,
            api_key=config.api_key,
            credential_command=config.credential_command,
            proxy=config.proxy,
            telemetry=config.telemetry,
            timings=config.timings,
            retry_config=retry_config,
        )

    def config(self) -> Config:
        return Config.resolve(
            base_url=self.base_url,
            api_key=self.api_key,
            headers=self.headers,
            credential_command=self.credential_command,
            proxy=self.proxy,
            telemetry=self.telemetry,
            timings=self.timings,
        )


_shadows: WeakValueDictionary[tuple[Any, ...], InternalClientHolder] = WeakValueDictionary()
_lock = threading.Lock()


def shadow_holder(state: SamplerState) -> InternalClientHolder:
    """This process's holder for that session; all copies in the process share it."""
    from tinkex.client.session.holder import HolderKind, InternalClientHolder
    from tinkex.types import ClientConfigResponse, ClientDynamicConfigResponse

    identity = (os.getpid(), state.session_id, state.base_url, state.api_key)
    with _lock:
        holder = _shadows.get(identity)
        if holder is None:
            holder = InternalClientHolder(
                state.config(),
                kind=HolderKind.SHADOW,
                session_id=state.session_id,
                flags=ClientConfigResponse.model_validate(state.flags),
                dynamic_flags=ClientDynamicConfigResponse.model_validate(state.dynamic_flags),
            )
            _shadows[identity] = holder
        return holder


def _forget_after_fork() -> None:
    global _lock
    _lock = threading.Lock()


os.register_at_fork(after_in_child=_forget_after_fork)


def new_clone_id() -> int:
    """A number that tells this copy from all others, chosen here."""
    return secrets.randbelow(MAX_CLONE_ID) + 1


def write_handle(state: SamplerState) -> str:
    """URL-safe text without credentials."""
    headers = {k: v for k, v in state.headers.items() if k.lower() not in SECRET_HEADERS}
    value = {
        "version": HANDLE_VERSION,
        "session_id": state.session_id,
        "sampling_session_id": state.sampling_session_id,
        "base_url": state.base_url,
        "headers": headers,
        "flags": state.flags,
        "dynamic_flags": state.dynamic_flags,
        "record_stability_info": state.record_stability_info,
    }
    return base64.urlsafe_b64encode(json.dumps(value).encode()).decode()


def read_handle(handle: str, api_key: str | None) -> SamplerState:
    """The state in a handle, with this process's credentials; ValueError when it is not one."""
    try:
        value = json.loads(base64.urlsafe_b64decode(handle.encode()))
        if value.pop("version") != HANDLE_VERSION:
            raise ValueError("unknown version")
        return SamplerState(api_key=api_key, **value)
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise ValueError(
            "handle: not a sampler handle; get one from SamplingClient.get_sampler_handle()"
        ) from error
