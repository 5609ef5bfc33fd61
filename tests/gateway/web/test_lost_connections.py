"""The chat page when it is reloaded, or its connection or server is gone, in a real browser."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import pytest
from playwright.sync_api import expect

from tests.gateway.web.conftest import OpenPage
from tests.gateway.web.conversation import answer, ask, ended
from tests.gateway.web.scripted_server import (
    KEY,
    Call,
    Drop,
    ScriptedServer,
    Wait,
)

if TYPE_CHECKING:
    from playwright.sync_api import Page

pytestmark = pytest.mark.browser


@pytest.mark.nightly
def test_reload_shows_the_conversation_again(page: Page, server: ScriptedServer) -> None:
    server.say("**Bold** words.", Call("", name="f"), Call('{"x": 1}'))
    ask(page, "Hi <b>there</b>")
    ended(page)
    before = page.inner_html("#transcript")
    page.reload()
    page.wait_for_selector("#link-state[data-state=open]")
    assert page.inner_html("#transcript") == before
    assert page.locator("#welcome").is_hidden()
    assert page.get_attribute("#gauge", "aria-valuenow") == "34"


def test_an_answer_goes_on_after_a_reload(page: Page, server: ScriptedServer) -> None:
    server.say("Half of ", Wait(), "it", Wait(), ", and all")
    ask(page, "Go")
    expect(page.locator(".prose")).to_have_text("Half of")
    page.reload()
    expect(page.locator(".turn.assistant")).to_have_attribute("aria-busy", "true")
    expect(page.locator("#stop")).to_be_visible()
    page.wait_for_selector("#link-state[data-state=open]")
    assert page.get_attribute("#gauge", "aria-valuenow") == "22"
    server.gate.set()
    expect(page.locator(".prose")).to_have_text("Half of it")
    page.reload()
    page.wait_for_selector("#link-state[data-state=open]")
    server.gate.set()
    ended(page)
    assert answer(page) == "Half of it, and all"
    assert re.search(r"13 tokens in .*finished", page.inner_text(".meta"), re.DOTALL)
    told = [message["type"] for message in server.received]
    assert told == ["connected", "chat", "connected", "resume", "connected", "resume"]
    ask(page, "And?")
    expect(page.locator(".turn")).to_have_count(4)
    assert [m["role"] for m in server.turns()[-1]["messages"]] == ["user", "assistant", "user"]


@pytest.mark.nightly
def test_an_answer_that_goes_on_after_a_reload_can_be_stopped(
    page: Page, server: ScriptedServer
) -> None:
    server.say("Half of ", Wait(), "it")
    ask(page, "Go")
    expect(page.locator(".prose")).to_have_text("Half of")
    page.reload()
    page.wait_for_selector("#link-state[data-state=open]")
    page.click("#stop")
    ended(page)
    assert "stopped" in page.inner_text(".meta")
    assert server.received[-1]["type"] == "cancel"


def test_an_answer_that_is_gone_after_a_reload_can_be_asked_for_again(
    page: Page, server: ScriptedServer
) -> None:
    server.say("Half of ", Wait(), "it")
    ask(page, "Go")
    expect(page.locator(".prose")).to_have_text("Half of")
    server.forgetful = True
    page.reload()
    expect(page.locator(".fault p")).to_contain_text("dropped before the answer was finished")
    assert answer(page) == "Half of"
    server.say("All of it")
    page.click("text=Try again")
    expect(page.locator(".prose")).to_have_text("All of it")
    assert server.turns()[-1]["messages"] == [{"role": "user", "content": "Go"}]


@pytest.mark.nightly
def test_a_question_that_a_reload_kept_from_being_sent_can_be_asked_again(
    page: Page, server: ScriptedServer
) -> None:
    server.accepting = False
    server.drop_all()
    expect(page.locator("#link-state")).to_have_attribute("data-state", "waiting")
    ask(page, "Are you there?")
    page.reload()
    expect(page.locator(".fault p")).to_have_text("The page was left before this answer began.")
    server.accepting = True
    page.wait_for_selector("#link-state[data-state=open]")
    page.click("text=Try again")
    expect(page.locator(".prose")).to_have_text("Hello.")


def test_an_answer_goes_on_after_a_lost_connection(page: Page, server: ScriptedServer) -> None:
    server.say("Half", Drop(), " of it", Wait(), ", and all.")
    ask(page, "Go")
    expect(page.locator(".prose")).to_have_text("Half of it")
    server.gate.set()
    ended(page)
    assert answer(page) == "Half of it, and all."
    assert "finished" in page.inner_text(".meta")
    assert [m["type"] for m in server.received] == ["connected", "chat", "connected", "resume"]
    assert server.received[-1]["last_seq"] == 1


@pytest.mark.nightly
def test_an_answer_that_goes_on_can_be_stopped(page: Page, server: ScriptedServer) -> None:
    server.say("Half", Drop(), " of it", Wait(), ", and all.")
    ask(page, "Go")
    expect(page.locator(".prose")).to_have_text("Half of it")
    page.click("#stop")
    ended(page)
    assert answer(page) == "Half of it"
    assert "stopped" in page.inner_text(".meta")


@pytest.mark.nightly
def test_an_answer_that_the_server_has_forgotten_can_be_tried_again(
    page: Page, server: ScriptedServer
) -> None:
    server.forgetful = True
    server.say("Half", Drop())
    ask(page, "Go")
    expect(page.locator(".fault p")).to_contain_text("connection dropped")
    assert answer(page) == "Half"
    server.say("Whole")
    page.click("text=Try again")
    expect(page.locator(".prose")).to_have_text("Whole")
    assert [m["type"] for m in server.received] == [
        "connected",
        "chat",
        "connected",
        "resume",
        "chat",
    ]


def test_a_question_asked_offline_is_sent_when_the_server_is_back(
    page: Page, server: ScriptedServer
) -> None:
    server.accepting = False
    server.drop_all()
    expect(page.locator("#link-state")).to_contain_text("Offline, next try in")
    ask(page, "Are you there?")
    expect(page.locator(".turn.assistant")).to_have_class(re.compile("pending"))
    server.accepting = True
    expect(page.locator(".prose")).to_have_text("Hello.")


@pytest.mark.nightly
def test_a_question_asked_offline_can_be_withdrawn(page: Page, server: ScriptedServer) -> None:
    server.accepting = False
    server.drop_all()
    expect(page.locator("#link-state")).to_have_attribute("data-state", "waiting")
    ask(page, "Are you there?")
    page.click("#stop")
    ended(page)
    assert "stopped" in page.inner_text(".meta")
    server.accepting = True
    page.wait_for_selector("#link-state[data-state=open]")
    assert server.turns() == []


def test_the_page_notices_a_server_that_stopped_answering(open_page: OpenPage) -> None:
    """No pong for ten seconds after a ping: the page reconnects (clock driven by the test)."""
    page = open_page(key=None)
    page.clock.install()
    page.evaluate(
        """() => {
          const send = WebSocket.prototype.send;
          WebSocket.prototype.send = function (text) {
            if (JSON.parse(text).type !== "ping") send.call(this, text);
          };
        }"""
    )
    page.fill("#key-input", KEY)
    page.press("#key-input", "Enter")
    page.wait_for_selector("#link-state[data-state=open]")
    page.clock.run_for(20_000)
    expect(page.locator("#link-state")).to_have_attribute("data-state", "open")
    page.clock.run_for(10_001)
    expect(page.locator("#link-state")).to_have_attribute(
        "data-state", re.compile("waiting|connecting")
    )
    page.clock.run_for(1_000)
    page.wait_for_selector("#link-state[data-state=open]")
