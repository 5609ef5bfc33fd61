"""Lists in pages: ``limit`` rows at most, and ``has_more`` says whether others follow.

In all routes of ``/admin/v1``, ``next`` is what to send as ``after`` for them, and ``search`` keeps
what contains a text, in any case. In those of OpenAI's API, ``after`` is the id of the last one
before the page, and ``order`` is ``asc`` or ``desc``.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Generic, NamedTuple, TypeVar

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from gateway.errors import InvalidRequestError
from gateway.routes.http import json_answer, query_number, secret_answer
from gateway.schemas.admin import ListObject

DEFAULT_LIMIT, MAX_LIMIT = 100, 1000
MAX_SEARCH = 200

K = TypeVar("K")
R = TypeVar("R")
S = TypeVar("S")


class Page(NamedTuple, Generic[K]):
    """What a request asks for of a list whose rows are ordered by a ``K``."""

    after: K | None
    limit: int
    search: str | None

    @property
    def fetched(self) -> int:
        """Rows to fetch: one more than is shown, to learn whether others follow."""
        return self.limit + 1


def page_of(
    request: Request, kind: type[K], *, default: int = DEFAULT_LIMIT, most: int = MAX_LIMIT
) -> Page[K]:
    """Raises ``InvalidRequestError`` that names the parameter."""
    limit = query_number(request, "limit", default, most=most)
    assert limit is not None
    search = search_of(request)
    text, after = request.query_params.get("after"), None
    if text is not None:
        try:
            padded = text.encode("ascii") + b"=" * (-len(text) % 4)
            after = msgspec.json.decode(base64.urlsafe_b64decode(padded), type=kind)
        except (binascii.Error, UnicodeEncodeError, msgspec.DecodeError):
            raise InvalidRequestError(
                "Must be what an earlier answer of this list gave as `next`.", param="after"
            ) from None
    return Page(after, limit, search)


def search_of(request: Request) -> str | None:
    """The text that is searched for. Raises ``InvalidRequestError``."""
    search = request.query_params.get("search") or None
    if search is not None and (len(search) > MAX_SEARCH or "\0" in search):
        raise InvalidRequestError(
            f"Must be a text of at most {MAX_SEARCH} characters.", param="search"
        )
    return search


def listing(
    rows: Sequence[R], page: Page[Any], key: Callable[[R], Any], show: Callable[[R], Any]
) -> Response:
    """A page of ``rows``, of which ``page.fetched`` were fetched. key: what they are ordered by."""
    shown, following = rows[: page.limit], None
    if len(rows) > page.limit:
        cursor = msgspec.json.encode(key(shown[-1]))
        following = base64.urlsafe_b64encode(cursor).decode().rstrip("=")
    found = [show(row) for row in shown]
    return secret_answer(ListObject(data=found, has_more=following is not None, next=following))


def first_listing(rows: Sequence[R], limit: int, show: Callable[[R], Any]) -> Response:
    """The first ``limit`` of ``rows``, of which one more was fetched; nothing leads to the rest."""
    shown = [show(row) for row in rows[:limit]]
    return secret_answer(ListObject(data=shown, has_more=len(rows) > limit, next=None))


def listing_of_all(
    rows: Iterable[R],
    page: Page[Any],
    key: Callable[[R], Any],
    show: Callable[[R], Any],
    texts: Callable[[R], str],
) -> Response:
    """A page of rows that are all in memory. texts: what is searched."""
    wanted = (page.search or "").lower()
    found = [row for row in rows if wanted in texts(row).lower()]
    found = [row for row in sorted(found, key=key) if page.after is None or key(row) > page.after]
    return listing(found[: page.fetched], page, key, show)


class IdPage(NamedTuple):
    """What a request asks for of one of OpenAI's lists."""

    after: str | None
    limit: int
    is_descending: bool

    @property
    def fetched(self) -> int:
        """As ``Page.fetched``."""
        return self.limit + 1


def id_page(request: Request, *, order: str = "desc", default: int = 20, most: int = 100) -> IdPage:
    """``order`` and ``default`` are what it has by default. Raises ``InvalidRequestError``."""
    order = request.query_params.get("order", order)
    if order not in ("asc", "desc"):
        raise InvalidRequestError("Must be asc or desc.", param="order")
    limit = query_number(request, "limit", default, most=most)
    assert limit is not None
    return IdPage(request.query_params.get("after"), limit, order == "desc")


def id_listing(
    make: Callable[..., msgspec.Struct],
    rows: Sequence[R],
    page: IdPage,
    show: Callable[[R], S],
    name: Callable[[S], str],
) -> Response:
    """A page of ``rows``, of which ``page.fetched`` were fetched. make: the list's class. name: the
    id of what is shown."""
    shown = [show(row) for row in rows[: page.limit]]
    return json_answer(
        make(
            data=shown,
            first_id=name(shown[0]) if shown else None,
            last_id=name(shown[-1]) if shown else None,
            has_more=len(rows) > page.limit,
        )
    )


def of_all(items: Sequence[dict[str, Any]], page: IdPage) -> Sequence[dict[str, Any]]:
    """The rows of a page, of items that are all in memory, in ascending order. Raises
    ``InvalidRequestError``."""
    rows = items[::-1] if page.is_descending else items
    if page.after is not None:
        ids = [item["id"] for item in rows]
        if page.after not in ids:
            raise nothing_before()
        rows = rows[ids.index(page.after) + 1 :]
    return rows[: page.fetched]


def nothing_before() -> InvalidRequestError:
    """``after`` names nothing of the list."""
    return InvalidRequestError("There is nothing with this id in the list.", param="after")
