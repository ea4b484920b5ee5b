"""Answers that only this server gives, or that the protocol has no name for, as types."""

from __future__ import annotations

from datetime import datetime
from typing import Literal

from pydantic import BaseModel, ConfigDict


class Answer(BaseModel):
    # Only the description of the API needs them built.
    model_config = ConfigDict(defer_build=True)


class Done(Answer):
    """It was done, and there is no more to say."""

    status: Literal["ok"]


class Collected(Answer):
    """What a home would delete: unnamed samplers that are not in use, and their bytes."""

    samplers: int
    size_bytes: int


class EngineState(Answer):
    """One engine: its state and its load."""

    engine: str
    model: str
    state: str
    reason: str
    device: str | None
    threads: int | None
    life: int
    deaths: int
    runs: int
    operations: int
    sequences: int


class EngineHealth(Answer):
    """An engine by its name: asleep, starting, ready, restarting or draining; `reason` says why it
    does not serve, or for how long it has not answered."""

    engine: str
    state: str
    reason: str


class Health(Answer):
    """Whether every model can serve, what works only in part, in words, and each engine's state."""

    status: Literal["ok"]
    degraded: list[str]
    engines: list[EngineHealth]


class EngineStates(Answer):
    """Every engine of a server."""

    engines: list[EngineState]


class Visitor(Answer):
    """Who is signed in to the dashboard. `page_secret` is shown once, where a visit begins."""

    tenant: str
    sees_all: bool
    version: str
    page_secret: str | None = None


class Invitation(Answer):
    """A link that lets one browser in, once."""

    url: str


class Refused(Answer):
    """Why a request is not served, for the person who sent it."""

    detail: str


class OrganizationDetails(Answer):
    name: str


class UserDetails(Answer):
    email: str


class KeyDetails(Answer):
    org_details: OrganizationDetails
    user_details: UserDetails


class KeyInfo(Answer):
    """Who a key belongs to."""

    key_id: int
    name: str
    note: str
    details: KeyDetails


class Link(Answer):
    """Where to fetch something, and until when."""

    url: str
    expires: datetime


class TraceExport(Answer):
    status: Literal["ready"]
    url: str


class TokenizerFiles(Answer):
    files: list[str]


class LossCreated(Answer):
    request_id: str
