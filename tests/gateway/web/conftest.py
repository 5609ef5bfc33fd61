"""The chat page under test: served by a scripted server, watched for anything that goes wrong."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import pytest

from tests.conftest import PATIENCE_MS
from tests.gateway.web.scripted_server import KEY, ScriptedServer

if TYPE_CHECKING:
    from playwright.sync_api import Browser, BrowserContext, Dialog, Page

OpenPage = Callable[..., "Page"]


@pytest.fixture(scope="module")
def _running_server() -> Iterator[ScriptedServer]:
    with ScriptedServer().serve() as server:
        yield server


@pytest.fixture
def server(_running_server: ScriptedServer) -> ScriptedServer:
    _running_server.reset()
    return _running_server


class Pages:
    """Opens pages, and notes what goes wrong on them: one logs an error, breaks its own content
    security policy, throws, opens a dialog, or asks any other host for anything."""

    def __init__(self, browser: Browser, server: ScriptedServer) -> None:
        self._browser = browser
        self._server = server
        self.faults: list[str] = []

    def new(self, **options: Any) -> Page:
        """A page in a profile of its own."""
        context = self._browser.new_context(
            **{"viewport": {"width": 1280, "height": 800}, **options}
        )
        context.set_default_timeout(PATIENCE_MS)
        page = context.new_page()
        page.on("pageerror", lambda error: self.faults.append(f"threw {error}"))
        page.on("console", self._logged)
        page.on("request", self._requested)
        page.on("dialog", self._dismissed)
        return page

    def load(self, page: Page, key: str | None, path: str) -> Page:
        page.goto(self._server.url + path + (f"#key={key}" if key else ""))
        # A font that comes late would change what is measured.
        page.evaluate("document.fonts.ready.then(() => null)")
        if key == KEY:
            page.wait_for_selector("#link-state[data-state=open]")
        return page

    def forget(self, page: Page) -> None:
        """Leave the page, without what it has stored; this takes half as long as a new profile."""
        page.goto(f"{self._server.url}/css/base.css")
        page.evaluate("sessionStorage.clear(), localStorage.clear()")
        page.context.clear_cookies()

    def _logged(self, message: Any) -> None:
        # Chromium itself logs a dropped WebSocket and a key that is refused; tests do both.
        by_itself = "WebSocket connection" in message.text or "status of 401" in message.text
        if message.type in ("error", "warning") and not by_itself:
            self.faults.append(message.text)

    def _requested(self, request: Any) -> None:
        if not request.url.startswith(self._server.url):
            self.faults.append(request.url)

    def _dismissed(self, dialog: Dialog) -> None:
        self.faults.append(f"dialog {dialog.message}")
        dialog.dismiss()


@pytest.fixture(scope="module")
def _pages(chromium: Browser, _running_server: ScriptedServer) -> Pages:
    return Pages(chromium, _running_server)


@pytest.fixture
def pages(_pages: Pages, server: ScriptedServer) -> Iterator[Pages]:
    yield _pages
    faults, _pages.faults = _pages.faults, []
    assert not faults


@pytest.fixture
def open_page(pages: Pages) -> Iterator[OpenPage]:
    """``open_page(key=KEY, **context options)``: the page in a profile of its own, connected."""
    contexts: list[BrowserContext] = []

    def open_(*, key: str | None = KEY, path: str = "/", **options: Any) -> Page:
        page = pages.new(**options)
        contexts.append(page.context)
        return pages.load(page, key, path)

    yield open_
    for context in contexts:
        context.close()


@pytest.fixture(scope="module")
def _kept_page(_pages: Pages) -> Page:
    return _pages.new()


@pytest.fixture
def page(_kept_page: Page, pages: Pages) -> Iterator[Page]:
    """The page, connected: one for the tests of a module, which leave no handler on it."""
    yield pages.load(_kept_page, KEY, "/")
    pages.forget(_kept_page)
