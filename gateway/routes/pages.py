"""The chat page and the admin page: static files of ``gateway/web``, with a strict
content-security policy."""

from __future__ import annotations

from pathlib import Path

from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.staticfiles import StaticFiles
from starlette.types import Scope

from gateway.schemas.operation import Operation
from gateway.services import Services

WEB = Path(__file__).parent.parent / "web"

SECURITY_HEADERS = {
    "content-security-policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; "
        "font-src 'self'; connect-src 'self'; manifest-src 'self'; base-uri 'none'; "
        "form-action 'none'; frame-ancestors 'none'"
    ),
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    # File names have no version, so browsers must ask each time, and usually get a 304.
    "cache-control": "no-cache",
}


class Pages(StaticFiles):
    """Static files with ``SECURITY_HEADERS``, also on a 304."""

    async def get_response(self, path: str, scope: Scope) -> Response:
        response = await super().get_response(path, scope)
        response.headers.update(SECURITY_HEADERS)
        return response


def operations(folder: Path = WEB) -> list[Operation]:
    """One for each file, which is public, and nothing else below ``/`` is."""
    if not folder.is_dir():
        return []
    pages = Pages(directory=folder, html=True)

    async def serve(services: Services, request: Request) -> Response:
        scope = request.scope
        return await pages.get_response(pages.get_path(scope), scope)

    names = [path.parent.name for path in folder.glob("*/index.html")]
    files = [path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()]
    served = {"/", *(f"/{name}/" for name in names), *(f"/{file}" for file in files)}
    return [
        *(Operation("GET", f"/{name}", "", _add_slash, scope=None) for name in names),
        *(Operation("GET", path, "", serve, scope=None) for path in sorted(served)),
    ]


async def _add_slash(services: Services, request: Request) -> Response:
    """Redirect to the folder's URL, which a page's relative links need. The location is a path
    only, so that it does not echo the client's Host header."""
    return RedirectResponse(f"{request.scope['path']}/", 308)
