"""Exercises of `RestClient` on sessions, samplers and the account."""

from __future__ import annotations

import warnings

from compat.exercises.registry import proves
from compat.world import World, unsigned_jwt


@proves("RestClient.list_sessions", "RestClient.list_sessions_async")
def _(w: World) -> None:
    assert w.session_id in w.rest.list_sessions(limit=100).result().sessions
    assert len(w.run(w.rest.list_sessions_async(limit=1, offset=0)).sessions) == 1


@proves("RestClient.get_session")
def _(w: World) -> None:
    session = w.rest.get_session(w.session_id).result()
    assert w.training.model_id in session.training_run_ids
    assert session.user_metadata == {"job": "compat"}


@proves("RestClient.get_session_async")
def _(w: World) -> None:
    assert w.sampling
    session = w.run(w.rest.get_session_async(w.session_id, access_scope="accessible"))
    assert session.sampler_ids


@proves("RestClient.search_sessions")
def _(w: World) -> None:
    assert w.training
    request = w.types.SessionSearchRequest(display_name="MATRIX compat", limit=10)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found = w.rest.search_sessions(request).result().sessions
    assert w.session_id in [summary.session_id for summary in found]


@proves("RestClient.search_sessions_async")
def _(w: World) -> None:
    assert w.training
    request = w.types.SessionSearchRequest(user_metadata={"job": "compat"}, limit=1)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        page = w.run(w.rest.search_sessions_async(request))
    assert [summary.status.type for summary in page.sessions] == ["active"]


@proves("RestClient.assign_session_project", "RestClient.assign_session_project_async")
def _(w: World) -> None:
    w.rest.assign_session_project(w.session_id, "project-7").result()
    w.run(w.rest.assign_session_project_async(w.session_id, "project-8"))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        request = w.types.SessionSearchRequest(project_ids=["project-8"])
        found = w.rest.search_sessions(request).result().sessions
    assert w.session_id in [summary.session_id for summary in found]
    assert {summary.project_id for summary in found} == {"project-8"}


@proves("RestClient.export_session_trace")
def _(w: World) -> None:
    w.training_logprobs(w.training)
    trace = w.fetch(w.rest.export_session_trace(w.session_id).result())
    assert b"traceEvents" in trace
    assert w.training.model_id.encode() in trace


@proves("RestClient.export_session_trace_async")
def _(w: World) -> None:
    assert b"traceEvents" in w.fetch(w.run(w.rest.export_session_trace_async(w.session_id)))


@proves("RestClient.get_sampler")
def _(w: World) -> None:
    sampler = w.rest.get_sampler(w.sampling._sampling_session_id).result()
    assert sampler.base_model == w.base_model


@proves("RestClient.get_sampler_async")
def _(w: World) -> None:
    path = w.sampler_path()
    client = w.service.create_sampling_client(model_path=path)
    assert w.run(w.rest.get_sampler_async(client._sampling_session_id)).model_path == path


@proves("RestClient.whoami")
def _(w: World) -> None:
    key = unsigned_jwt("tml:organization_user:ada")
    rest = w.sdk.RestClient(base_url=w.base_url, api_key=key)
    assert rest.whoami().result().user_urn == "tml:organization_user:ada"
