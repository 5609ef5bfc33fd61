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


@pytest.fixture
def open_page(chromium: Browser, server: ScriptedServer) -> Iterator[OpenPage]:
    """``open_page(key=KEY, **context options)``: the page in a profile of its own, connected.

    The test fails if the page logs an error, breaks its own content security policy, throws, or
    asks any other host for anything.
    """
    faults: list[str] = []
    contexts: list[BrowserContext] = []

    def dismissed(dialog: Dialog) -> None:
        faults.append(f"dialog {dialog.message}")
        dialog.dismiss()

    def watch(page: Page) -> None:
        page.on("pageerror", lambda error: faults.append(f"threw {error}"))
        page.on("console", lambda message: faults.append(message.text) if _bad(message) else None)
        page.on(
            "request",
            lambda request: (
                None if request.url.startswith(server.url) else faults.append(request.url)
            ),
        )
        page.on("dialog", dismissed)

    def open_(*, key: str | None = KEY, path: str = "/", **options: Any) -> Page:
        context = chromium.new_context(**{"viewport": {"width": 1280, "height": 800}, **options})
        context.set_default_timeout(PATIENCE_MS)
        contexts.append(context)
        page = context.new_page()
        watch(page)
        page.goto(server.url + path + (f"#key={key}" if key else ""))
        # A font that comes late would change what is measured.
        page.evaluate("document.fonts.ready.then(() => null)")
        if key == KEY:
            page.wait_for_selector("#link-state[data-state=open]")
        return page

    yield open_
    for context in contexts:
        context.close()
    assert not faults


def _bad(message: Any) -> bool:
    # A dropped WebSocket is logged by Chromium itself; several tests drop it on purpose.
    return message.type in ("error", "warning") and "WebSocket connection" not in message.text


@pytest.fixture
def page(open_page: OpenPage) -> Page:
    return open_page()
