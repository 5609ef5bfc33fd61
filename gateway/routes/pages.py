"""The chat page and the admin page: static files of ``gateway/web``, under a strict policy."""

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
    # Files carry no version in their names: ask each time, usually answered 304.
    "cache-control": "no-cache",
}


class Pages(StaticFiles):
    """Static files with our headers, also on a 304."""

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
    """One route for each file: a mounted folder would take every path, and hide wrong methods."""
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
    """Redirect to the folder's URL, which a page's relative links need. Only the path is given: the
    host is the client's to know."""
    return RedirectResponse(f"{request.scope['path']}/", 308)
