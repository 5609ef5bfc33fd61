"""The chat page and the admin page: static files of ``gateway/web``, with a strict
content-security policy."""

from __future__ import annotations

from pathlib import Path

from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import Route
from starlette.staticfiles import StaticFiles
from starlette.types import Scope

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


def public_paths(folder: Path = WEB) -> frozenset[str]:
    """Every path of the pages; nothing else below ``/`` is public."""
    files = [path.relative_to(folder) for path in folder.rglob("*") if path.is_file()]
    pages = [f"/{page}{slash}" for page in _pages(folder) for slash in ("", "/")]
    root = ["/"] if files else []
    return frozenset([*root, *pages, *(f"/{path.as_posix()}" for path in files)])


def _pages(folder: Path) -> list[str]:
    """The folders that have a page of their own."""
    return [path.parent.name for path in folder.glob("*/index.html")]


def page_routes(folder: Path = WEB) -> list[Route]:
    """One route for each file. A mounted folder would match every path, and so hide the 405 of
    other routes."""
    if not folder.is_dir():
        return []
    pages = Pages(directory=folder, html=True)
    bare = {f"/{page}" for page in _pages(folder)}
    served = sorted(public_paths(folder) - bare)
    return [
        *(Route(path, _add_slash, methods=["GET"]) for path in sorted(bare)),
        *(Route(path, pages, methods=["GET"]) for path in served),
    ]


async def _add_slash(request: Request) -> Response:
    """Redirect to the folder's URL, which a page's relative links need. The location is a path
    only, so that it does not echo the client's Host header."""
    return RedirectResponse(f"{request.scope['path']}/", 308)
