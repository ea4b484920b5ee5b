"""The dashboard's files, and signing in to it and out again."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from tinkex.server.dashboard import assets
from tinkex.server.dashboard.assets import Asset
from tinkex.server.dashboard.door import invitation
from tinkex.server.dashboard.visits import PAGE_HEADER, VISIT_S, Visit
from tinkex.server.http.answers import Done, Invitation, Visitor
from tinkex.server.http.bodies import read_strangers
from tinkex.server.http.exchange import (
    answer,
    core_of,
    guarded,
    is_owner,
    nothing,
    sees_all,
    tenant_of,
)
from tinkex.server.http.routing import route
from tinkex.server.protocol import requests
from tinkex.server.refusals import NotFound, Refusal, Unauthorized
from tinkex.server.tenancy.tenants import hash_key
from tinkex.wire import routes as paths
from tinkex.wire.limits import LOCAL_API_KEY
from tinkex.wire.package_version import package_version

_KEEP = "public, max-age=31536000, immutable"
_ASK_AGAIN = "no-cache"
HEADERS = {
    "content-security-policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; "
        "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'; "
        "require-trusted-types-for 'script'; trusted-types tinkex"
    ),
    "cross-origin-opener-policy": "same-origin-allow-popups",
    "cross-origin-resource-policy": "same-origin",
    "permissions-policy": "camera=(), geolocation=(), microphone=()",
    "referrer-policy": "no-referrer",
    "vary": "accept-encoding",
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
}


async def index(request: Request) -> Response:
    """The page; the browser asks every time whether it is still this one."""
    return _file(request, assets.load().index, _ASK_AGAIN)


async def file(request: Request) -> Response:
    """A file of the page. An address names what is in it, so it never has to be asked for again."""
    found = assets.load()
    asset = found.files.get(request.path_params["name"])
    if asset is None or request.path_params["version"] != found.version:
        raise NotFound("the page has no such file: reload it")
    return _file(request, asset, _KEEP)


def _file(request: Request, asset: Asset, caching: str) -> Response:
    headers = {**HEADERS, "cache-control": caching, "etag": asset.etag}
    if request.headers.get("if-none-match") == asset.etag:
        return Response(status_code=304, headers=headers)
    headers["content-type"] = asset.content_type
    if "gzip" in request.headers.get("accept-encoding", ""):
        return Response(asset.compressed, headers={**headers, "content-encoding": "gzip"})
    return Response(asset.body, headers=headers)


async def sign_in(request: Request) -> Response:
    """Begin a visit, with a key or with the token of an invitation."""
    core = core_of(request)
    _from_own_page(request)
    address = request.client.host if request.client else ""
    asked = await read_strangers(request, requests.DASHBOARD_SIGN_IN)
    try:
        visit = _admitted(request, asked.key, asked.invitation)
    except Unauthorized:
        core.guesses.check(address)
        core.guesses.failed(address)
        raise
    cookie, secret = core.visits.begin(visit)
    tenant = core.tenants.of_digest(visit.digest, is_owner=visit.invited)
    everything = visit.invited or core.tenants.is_operator(visit.digest)
    response = answer({**_visitor(tenant, everything), "page_secret": secret})
    _set_cookie(request, response, cookie, VISIT_S)
    return response


async def who(request: Request) -> Response:
    """Who is signed in."""
    return answer(_visitor(tenant_of(request), sees_all(request)))


async def sign_out(request: Request) -> Response:
    """End this browser's visit."""
    _from_own_page(request)
    response = nothing()
    _set_cookie(request, response, "", 0)
    return response


async def invite(request: Request) -> Response:
    """A link that lets one browser in, for who owns the home's files."""
    core = core_of(request)
    tenant_of(request)
    if not is_owner(request):
        raise NotFound("an invitation is given to who owns the home's files: tinkex dashboard")
    if not core.settings.address:
        raise Refusal("this server has no port for a browser: start one with tinkex serve")
    return answer({"url": invitation(core.settings.address, core.invitations.issue())})


def _admitted(request: Request, key: str | None, token: str | None) -> Visit:
    core = core_of(request)
    if token is None:
        core.tenants.identify(key)
        return Visit(hash_key(key or ""), invited=False)
    if not core.invitations.redeem(token):
        raise Unauthorized("this link was used before, or is too old: tinkex dashboard makes one")
    return Visit(hash_key(LOCAL_API_KEY), invited=True)


def _from_own_page(request: Request) -> None:
    """Foreign pages cannot send this header: their browser would ask us first, and we are mute."""
    if PAGE_HEADER not in request.headers:
        raise Refusal(f"sign in and out on the dashboard: {PAGE_HEADER} is missing")


def _set_cookie(request: Request, response: Response, value: str, max_age: int) -> None:
    response.set_cookie(
        core_of(request).visits.cookie,
        value,
        max_age=max_age,
        secure=request.url.scheme == "https",
        httponly=True,
        samesite="strict",
    )
    response.headers["cache-control"] = "no-store"


def _visitor(tenant: str, everything: bool) -> dict[str, str | bool]:
    return {"tenant": tenant, "sees_all": everything, "version": package_version()}


ROUTES: list[Route] = [
    Route("/", guarded(index, "/"), methods=["GET"]),
    Route(f"{assets.ASSETS_PATH}/{{version}}/{{name:path}}", guarded(file, assets.ASSETS_PATH)),
    route("GET", paths.DASHBOARD_VISIT, who, Visitor),
    route(
        "POST",
        paths.DASHBOARD_VISIT,
        sign_in,
        Visitor,
        reads=requests.DASHBOARD_SIGN_IN,
        needs_key=False,
    ),
    route("DELETE", paths.DASHBOARD_VISIT, sign_out, Done, needs_key=False),
    route("POST", paths.DASHBOARD_INVITATION, invite, Invitation),
]
