"""The tokenizer files of the served models, for clients that cannot read this machine's folders."""

from __future__ import annotations

from pathlib import Path

from starlette.requests import Request
from starlette.responses import FileResponse, Response
from starlette.routing import Route

from tinkex.server.http.answers import TokenizerFiles
from tinkex.server.http.exchange import answer, core_of, tenant_of
from tinkex.server.http.routing import route
from tinkex.server.refusals import NotFound
from tinkex.text.model_files import SERVED
from tinkex.wire import routes as paths


async def listing(request: Request) -> Response:
    """Which files there are, so that a client can fetch them all."""
    tenant_of(request)
    folder = _folder(request)
    return answer({"files": [name for name in SERVED if (folder / name).is_file()]})


async def file(request: Request) -> Response:
    tenant_of(request)
    folder, name = _folder(request), request.path_params["file"]
    if name not in SERVED or not (folder / name).is_file():
        raise NotFound(f"no tokenizer file {name[:200]!r}; there may be: {', '.join(SERVED)}")
    return FileResponse(folder / name)


def _folder(request: Request) -> Path:
    name = request.path_params["model_name"]
    spec = core_of(request).engines.spec(name)
    if spec.tokenizer is None:
        raise NotFound(f"model {name[:200]!r} has no tokenizer files here")
    return Path(spec.tokenizer)


def _served(path: str) -> str:
    """A model's name may hold slashes."""
    return path.replace("{model_name}", "{model_name:path}")


ROUTES: list[Route] = [
    route("GET", _served(paths.TOKENIZER), listing, TokenizerFiles),
    route("GET", _served(paths.TOKENIZER_FILE), file, "*/*"),
]
