"""Answers that only this server gives, or that the protocol has no name for, as types."""

from __future__ import annotations

from datetime import datetime
from typing import Literal

from pydantic import BaseModel


class Done(BaseModel):
    """It was done, and there is nothing to say about it."""

    status: Literal["ok"]


class Collected(BaseModel):
    """What a home lets go of: samplers without a name that are not in use, and their bytes."""

    samplers: int
    size_bytes: int


class EngineState(BaseModel):
    """One engine: how it is and what it has to do."""

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


class EngineStates(BaseModel):
    """Every engine of a server."""

    engines: list[EngineState]


class Visitor(BaseModel):
    """Who is signed in to the dashboard. `page_secret` is shown once, where a visit begins."""

    tenant: str
    sees_all: bool
    version: str
    page_secret: str | None = None


class Invitation(BaseModel):
    """A link that lets one browser in, once."""

    url: str


class Refused(BaseModel):
    """Why a request is not served, for the person who sent it."""

    detail: str


class OrganizationDetails(BaseModel):
    name: str


class UserDetails(BaseModel):
    email: str


class KeyDetails(BaseModel):
    org_details: OrganizationDetails
    user_details: UserDetails


class KeyInfo(BaseModel):
    """Who a key belongs to."""

    key_id: int
    name: str
    note: str
    details: KeyDetails


class Link(BaseModel):
    """Where to fetch something, and until when."""

    url: str
    expires: datetime


class TraceExport(BaseModel):
    status: Literal["ready"]
    url: str


class TokenizerFiles(BaseModel):
    files: list[str]


class LossCreated(BaseModel):
    request_id: str
