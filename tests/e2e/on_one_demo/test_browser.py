"""The chat page of a real demo in real Chromium: browser, gateway, engine and model together."""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any

import asyncpg
import pytest
from playwright.sync_api import expect

from tenants.embedded import SUPERUSER
from tenants.postmaster import Postmaster
from tests.e2e.demo_process import DemoProcess

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

pytestmark = [pytest.mark.browser, pytest.mark.pg]

# The page leaves sampling to the model's defaults; these tests ask for the likeliest words.
CHAT_FIELDS = """
  window.chatFields = { temperature: 0 };
  const send = WebSocket.prototype.send;
  WebSocket.prototype.send = function (text) {
    const message = JSON.parse(text);
    window.socket = this;
    if (message.type === "chat") Object.assign(message, window.chatFields);
    send.call(this, JSON.stringify(message));
  };
"""
STORY = "Tell me a story about a fox named Ada."


@pytest.fixture
def page(chromium: Browser, demo: dict[str, Any]) -> Iterator[Page]:
    """The page as the demo's printed address opens it; fails on any error it logs."""
    context = chromium.new_context(viewport={"width": 1280, "height": 800})
    page = context.new_page()
    page.add_init_script(CHAT_FIELDS)
    faults: list[str] = []
    page.on("pageerror", lambda error: faults.append(str(error)))
    page.on("console", lambda message: faults.append(message.text) if _bad(message) else None)
    page.goto(f"{demo['url']}/#key={demo['api_key']}")
    page.wait_for_selector("#link-state[data-state=open]")
    yield page
    context.close()
    assert not faults


def _bad(message: Any) -> bool:
    return message.type in ("error", "warning") and "WebSocket connection" not in message.text


def ask(page: Page, text: str) -> None:
    page.fill("#prompt", text)
    page.press("#prompt", "Enter")


def endless(page: Page, on: bool) -> None:
    """Whether answers go on until the context is full: the model is faster than a test."""
    page.evaluate(
        "(on) => { on ? (chatFields.ignore_eos = true) : delete chatFields.ignore_eos }", on
    )


def begun(page: Page) -> None:
    """Wait for the answer's first words."""
    expect(page.locator(".prose").last).to_have_text(re.compile(r".{20}"), timeout=30_000)


def ended(page: Page) -> None:
    page.wait_for_selector(".turn:last-child[aria-busy=false]", timeout=60_000)


def test_a_question_is_answered(page: Page, demo: dict[str, Any]) -> None:
    assert page.url == demo["url"] + "/"  # the key has left the address bar
    assert page.inner_text("#model") == "demo"
    ask(page, "What is the capital of France?")
    ended(page)
    assert "Paris" in page.inner_text(".prose")
    assert "tokens in" in page.inner_text(".meta")
    assert int(page.get_attribute("#gauge", "aria-valuenow") or 0) > 5


def test_what_is_deleted_is_in_no_table(page: Page, demo_process: DemoProcess) -> None:
    ask(page, "What is the capital of Norway?")
    ended(page)
    kept = page.locator("#library-list li", has_text="capital of Norway")
    expect(kept).to_have_count(1)
    assert num_stored(demo_process.data_dir, "Norway") > 0
    kept.get_by_role("button").click()
    page.click("#conversation-delete")
    page.click("text=Delete for good")
    expect(kept).to_have_count(0)
    expect(page.locator(".turn")).to_have_count(0)
    assert num_stored(demo_process.data_dir, "Norway") == 0


def num_stored(data_dir: Path, text: str) -> int:
    """How many conversations and their items have this text, as their tables say."""
    (pid_file,) = data_dir.rglob("postmaster.pid")
    postmaster = Postmaster.find(pid_file.parent)
    assert postmaster is not None

    async def rows() -> list[asyncpg.Record]:
        connection = await asyncpg.connect(
            host=postmaster.socket_dir, port=postmaster.port, user=SUPERUSER, database="sluice"
        )
        try:
            found: list[asyncpg.Record] = await connection.fetch(
                "SELECT metadata FROM conversation UNION ALL SELECT body FROM conversation_item"
            )
            return found
        finally:
            await connection.close()

    with ThreadPoolExecutor(1) as thread:  # The browser's loop runs in this one.
        return sum(text in row[0].decode() for row in thread.submit(asyncio.run, rows()).result())


@pytest.mark.nightly
def test_tokens_arrive_one_after_the_other(page: Page) -> None:
    page.evaluate(
        """() => {
          window.lengths = new Set();
          const list = document.getElementById("transcript");
          new MutationObserver(() => {
            const prose = list.querySelector(".prose");
            if (prose) lengths.add(prose.textContent.length);
          }).observe(list, {childList: true, subtree: true, characterData: true});
        }"""
    )
    endless(page, True)  # a story of its own length may fit into a few frames
    ask(page, STORY)
    deadline = time.monotonic() + 30
    while page.evaluate("lengths.size") <= 4:  # the page's policy forbids playwright's own waiting
        assert time.monotonic() < deadline
        page.wait_for_timeout(20)
    page.click("#stop")
    ended(page)
    endless(page, False)
    assert "Ada" in page.inner_text(".prose")


def test_an_answer_goes_on_after_a_reload(page: Page) -> None:
    endless(page, True)
    ask(page, STORY)
    begun(page)
    page.reload()
    before = page.inner_text(".prose")
    page.wait_for_selector("#link-state[data-state=open]")
    expect(page.locator(".prose")).to_have_text(re.compile(rf".{{{len(before) + 20}}}", re.DOTALL))
    assert page.inner_text(".prose").startswith(before.rstrip())
    if page.locator("#stop").is_visible():
        page.click("#stop")
    ended(page)
    endless(page, False)
    expect(page.locator(".meta")).to_have_text(re.compile("stopped|cut off"))
    assert page.locator(".fault").count() == 0


@pytest.mark.nightly
def test_an_opener_becomes_a_table(page: Page) -> None:
    """Also in a chat that has begun: who chose one opener types another."""
    opener = page.locator("#openers button", has_text="table").inner_text()
    for turn in range(2):
        ask(page, opener)
        expect(page.locator(".turn.assistant")).to_have_count(turn + 1)
        ended(page)
        cells = page.locator(".prose").last.locator("td").all_inner_texts()
        assert cells == ["France", "Paris", "Spain", "Madrid", "Italy", "Rome"]


@pytest.mark.nightly
def test_an_engine_killed_in_mid_answer_is_a_pause(page: Page, demo_process: DemoProcess) -> None:
    """kill -9 of the engine: the answer goes on where it stopped, on the same page."""
    engine = demo_process.engine()
    endless(page, True)
    ask(page, STORY)
    begun(page)
    engine.kill()
    page.wait_for_timeout(500)  # What was on its way has come.
    before = page.inner_text(".prose")
    ended(page)
    assert page.locator(".fault").count() == 0
    after = page.inner_text(".prose")
    assert len(after) > len(before) + 100
    assert after[: len(before) - 20] == before[:-20]  # Marks at the end may not be closed yet.
    endless(page, False)
