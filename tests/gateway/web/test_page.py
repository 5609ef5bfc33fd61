"""The chat page in a real browser, against a server that plays every part of the protocol."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING

import pytest
from playwright.sync_api import expect

from tests.gateway.web.conftest import OpenPage
from tests.gateway.web.conversation import answer, ask, ended
from tests.gateway.web.scripted_server import (
    KEY,
    SESSION,
    Call,
    Done,
    Fail,
    Say,
    ScriptedServer,
    Think,
    Wait,
)

if TYPE_CHECKING:
    from playwright.sync_api import Locator, Page

pytestmark = pytest.mark.browser


def test_tokens_show_as_they_arrive(page: Page, server: ScriptedServer) -> None:
    server.say("One", Wait(), ", two", Wait(), ", three")
    ask(page, "Count to three")
    for text in ("One", "One, two", "One, two, three"):
        expect(page.locator(".turn.assistant .prose")).to_have_text(text)
        server.gate.set()
    ended(page)
    assert server.turns()[0]["messages"] == [{"role": "user", "content": "Count to three"}]
    assert "13 tokens in" in page.inner_text(".meta")
    assert "finished" in page.inner_text(".meta")


def test_a_key_with_several_models_chooses_between_them(
    open_page: OpenPage, server: ScriptedServer
) -> None:
    server.models = ["base", "support"]
    page = open_page()
    expect(page.locator("#model")).to_be_hidden()
    choice = page.get_by_label("Model", exact=True)
    expect(choice).to_have_value("base")
    choice.select_option("support")
    ask(page, "Hi")
    ended(page)
    page.reload()
    expect(choice).to_have_value("support")
    server.models = ["base"]  # the adapter was unloaded
    page.reload()
    expect(page.locator("#model")).to_have_text("base")
    expect(choice).to_be_hidden()
    ask(page, "And now?")
    ended(page)
    assert [turn["model"] for turn in server.turns()] == ["support", "base"]


@pytest.mark.nightly
def test_before_the_first_token_the_answer_is_shown_as_pending(
    page: Page, server: ScriptedServer
) -> None:
    server.say(Wait(), "Here")
    ask(page, "Hi")
    expect(page.locator(".turn.assistant")).to_have_class(re.compile("pending"))
    server.gate.set()
    ended(page)
    expect(page.locator(".turn.assistant")).not_to_have_class(re.compile("pending"))


def test_stop_keeps_what_came_and_frees_the_field(page: Page, server: ScriptedServer) -> None:
    server.say("Half an ans", Wait(), "wer")
    ask(page, "Go")
    expect(page.locator(".prose")).to_have_text("Half an ans")
    page.click("#stop")
    ended(page)
    assert answer(page) == "Half an ans"
    assert "stopped" in page.inner_text(".meta")
    assert [message["type"] for message in server.received] == ["connected", "chat", "cancel"]
    expect(page.locator("#send")).to_be_visible()
    # The stop gate had focus and is gone: focus must not fall to the top of the page.
    expect(page.locator("#prompt")).to_be_focused()


@pytest.mark.nightly
def test_escape_stops_too(page: Page, server: ScriptedServer) -> None:
    server.say("Half", Wait())
    ask(page, "Go")
    expect(page.locator(".prose")).to_have_text("Half")
    page.keyboard.press("Escape")
    ended(page)
    assert "stopped" in page.inner_text(".meta")


@pytest.mark.nightly
def test_the_gate_in_the_mark_is_open_while_an_answer_flows(
    page: Page, server: ScriptedServer
) -> None:
    server.say("Water", Wait())
    ask(page, "Go")
    expect(page.locator("html")).to_have_attribute("data-flow", "open")
    server.gate.set()
    expect(page.locator("html")).to_have_attribute("data-flow", "shut")


def test_a_second_turn_carries_the_first(page: Page, server: ScriptedServer) -> None:
    server.say("Blue.")
    ask(page, "My favourite colour?")
    ended(page)
    ask(page, "Why?")
    expect(page.locator(".turn")).to_have_count(4)
    ended(page)
    assert server.turns()[1]["messages"] == [
        {"role": "user", "content": "My favourite colour?"},
        {"role": "assistant", "content": "Blue."},
        {"role": "user", "content": "Why?"},
    ]


def height_of(element: Locator) -> float:
    box = element.bounding_box()
    assert box is not None
    return box["height"]


@pytest.mark.nightly
def test_shift_enter_starts_a_new_line_and_the_field_grows(
    page: Page, server: ScriptedServer
) -> None:
    height = height_of(page.locator("#prompt"))
    page.fill("#prompt", "one")
    page.press("#prompt", "Shift+Enter")
    page.keyboard.type("two")
    assert height_of(page.locator("#prompt")) > height
    page.press("#prompt", "Enter")
    ended(page)
    assert server.turns()[0]["messages"][0]["content"] == "one\ntwo"
    assert height_of(page.locator("#prompt")) == height


@pytest.mark.nightly
def test_enter_while_composing_does_not_send(page: Page, server: ScriptedServer) -> None:
    page.fill("#prompt", "にほn")
    page.evaluate(
        """document.getElementById("prompt").dispatchEvent(
             new KeyboardEvent("keydown", {key: "Enter", isComposing: true, bubbles: true}))"""
    )
    assert page.input_value("#prompt") == "にほn"
    assert server.turns() == []


def test_nothing_is_sent_while_an_answer_flows_or_without_words(
    page: Page, server: ScriptedServer
) -> None:
    ask(page, "   ")
    assert page.locator(".turn").count() == 0
    server.say("First", Wait())
    ask(page, "One")
    expect(page.locator(".prose")).to_have_text("First")
    ask(page, "Two")
    assert page.input_value("#prompt") == "Two"  # kept for later, not lost
    assert len(server.turns()) == 1


def test_new_chat_stops_forgets_and_starts_over(page: Page, server: ScriptedServer) -> None:
    server.say("Never fin", Wait())
    ask(page, "Go")
    expect(page.locator(".prose")).to_have_text("Never fin")
    page.click("#new-chat")
    expect(page.locator("#welcome")).to_be_visible()
    assert page.locator(".turn").count() == 0
    server.say("Fresh.")
    ask(page, "Again")
    expect(page.locator(".prose")).to_have_text("Fresh.")
    assert server.turns()[-1]["messages"] == [{"role": "user", "content": "Again"}]
    assert "cancel" in [message["type"] for message in server.received]


@pytest.mark.nightly
def test_an_opener_asks_its_question(page: Page, server: ScriptedServer) -> None:
    opener = page.locator("#openers button").first
    question = opener.inner_text()
    opener.click()
    ended(page)
    assert server.turns()[0]["messages"][0]["content"] == question


def test_an_error_is_shown_in_words_and_can_be_tried_again(
    page: Page, server: ScriptedServer
) -> None:
    server.say("Begun", Fail("The engine restarted while it wrote this answer."))
    ask(page, "Go")
    expect(page.locator(".fault p")).to_have_text(
        "The engine restarted while it wrote this answer."
    )
    assert answer(page) == "Begun"
    server.say("Done this time.")
    page.click("text=Try again")
    expect(page.locator(".prose")).to_have_text("Done this time.")
    assert page.locator(".turn").count() == 2
    assert page.locator(".fault").count() == 0


def test_a_refused_question_can_be_edited(page: Page, server: ScriptedServer) -> None:
    ask(page, "First")
    ended(page)
    server.say(Fail("The field stop is too long.", 400, retryable=False, code="invalid_value"))
    ask(page, "Second")
    expect(page.locator(".fault p")).to_have_text("The field stop is too long.")
    assert page.locator(".fault button").all_inner_texts() == ["Edit the question"]
    page.fill("#prompt", "begun since")
    page.click("text=Edit the question")
    expect(page.locator("#prompt")).to_be_focused()
    expect(page.locator("#prompt")).to_have_value("Second\n\nbegun since")
    expect(page.locator("#send")).to_be_enabled()
    assert page.locator(".turn").count() == 2
    server.say("Fine.")
    page.press("#prompt", "Enter")
    expect(page.locator(".prose").last).to_have_text("Fine.")
    asked = [message["content"] for message in server.turns()[-1]["messages"]]
    assert asked == ["First", "Hello.", "Second\n\nbegun since"]


@pytest.mark.nightly
def test_a_full_context_offers_a_new_chat(page: Page, server: ScriptedServer) -> None:
    server.say(Fail("Too long.", 400, retryable=False, code="context_length_exceeded"))
    ask(page, "Go")
    page.click("text=Edit the question")
    expect(page.locator("#welcome")).to_be_visible()
    page.press("#prompt", "Enter")
    page.click("text=Start a new chat")
    expect(page.locator("#welcome")).to_be_visible()


@pytest.mark.nightly
@pytest.mark.parametrize("text", ["word " * 400, "line\n" * 60])
def test_a_question_that_fills_screens_shows_its_beginning(
    page: Page, server: ScriptedServer, text: str
) -> None:
    ask(page, text)
    ended(page)
    question = page.locator(".turn.user")
    clipped = height_of(question)
    assert clipped < 450
    more = question.locator(".more")
    expect(more).to_have_text(f"Show all {len(text.strip()):,} characters")
    more.click()
    assert height_of(question) > clipped
    expect(more).to_have_count(0)
    assert server.turns()[0]["messages"][0]["content"] == text.strip()
    ask(page, "Short")
    expect(page.locator(".question").last).to_have_text("Short")


@pytest.mark.nightly
def test_ask_again_replaces_the_answer(page: Page, server: ScriptedServer) -> None:
    server.say("First try")
    ask(page, "Go")
    ended(page)
    server.say("Second try")
    page.click("text=Ask again")
    expect(page.locator(".prose")).to_have_text("Second try")
    assert page.locator(".turn").count() == 2
    assert server.turns()[1]["messages"] == server.turns()[0]["messages"]


@pytest.mark.nightly
def test_a_length_limit_says_so(page: Page, server: ScriptedServer) -> None:
    server.say("And then", Done("length"))
    ask(page, "Go")
    ended(page)
    assert "cut off at the token limit" in page.inner_text(".meta")


def test_the_key_is_asked_for_once_and_no_script_keeps_it(
    page: Page, server: ScriptedServer
) -> None:
    assert page.url == server.url + "/"
    page.reload()
    page.wait_for_selector("#link-state[data-state=open]")
    second = page.context.new_page()
    second.goto(server.url)
    second.wait_for_selector("#link-state[data-state=open]")
    stored = "JSON.stringify([document.cookie, {...sessionStorage}, {...localStorage}])"
    for one in (page, second):
        assert one.locator("#key-dialog").is_hidden()
        assert KEY not in one.evaluate(stored)
        assert SESSION not in one.evaluate(stored)
    assert server.keys == [KEY]
    second.close()


def test_without_a_key_the_page_asks_for_one(open_page: OpenPage, server: ScriptedServer) -> None:
    page = open_page(key=None)
    expect(page.locator("#key-dialog")).to_be_visible()
    expect(page.locator("#key-input")).to_be_focused()
    page.fill("#key-input", KEY)
    page.press("#key-input", "Enter")
    page.wait_for_selector("#link-state[data-state=open]")
    assert page.locator("#key-dialog").is_hidden()
    ask(page, "Hi")
    ended(page)
    assert answer(page) == "Hello."


def test_a_refused_key_is_named_and_replaced(open_page: OpenPage, server: ScriptedServer) -> None:
    page = open_page(key="sk-wrong")
    expect(page.locator("#key-error")).to_have_text("This API key is unknown.")
    expect(page.locator("#key-dialog")).to_be_visible()
    page.fill("#key-input", KEY)
    page.click("text=Use this key")
    page.wait_for_selector("#link-state[data-state=open]")
    # Refused once, not in a loop.
    assert server.keys == ["sk-wrong", KEY]


def test_a_key_that_is_revoked_is_asked_for_again(
    open_page: OpenPage, server: ScriptedServer
) -> None:
    page = open_page()
    page.context.clear_cookies()
    server.drop_all()
    expect(page.locator("#key-error")).to_have_text("The sign-in has ended.")
    page.fill("#key-input", KEY)
    page.click("text=Use this key")
    page.wait_for_selector("#link-state[data-state=open]")


def test_signing_out_ends_what_all_tabs_show(open_page: OpenPage, server: ScriptedServer) -> None:
    page = open_page()
    ask(page, "My secret")
    ended(page)
    second = page.context.new_page()
    second.goto(server.url)
    second.wait_for_selector("#link-state[data-state=open]")
    second.click("#change-key")
    with page.expect_event("load"), second.expect_event("load"):
        second.get_by_role("button", name="Sign out test").click()
    for one in (second, page):
        expect(one.locator("#key-dialog")).to_be_visible()
        expect(one.locator(".turn")).to_have_count(0)
        assert "secret" not in one.evaluate("JSON.stringify({...sessionStorage})")


@pytest.mark.nightly
def test_asking_without_a_key_says_so(open_page: OpenPage) -> None:
    page = open_page(key=None)
    page.click("#key-cancel")
    ask(page, "Hi")
    expect(page.locator("#key-dialog")).to_be_visible()
    expect(page.locator(".fault p")).to_have_text("There is no API key yet.")


def test_a_tool_call_is_a_card_and_goes_back_as_history(page: Page, server: ScriptedServer) -> None:
    server.say(
        Call("", name="get_weather"), Call('{"city": '), Wait(), Call('"Oslo"}'), Done("tool_calls")
    )
    ask(page, "Weather?")
    expect(page.locator(".card pre")).to_have_text('{"city":')
    server.gate.set()
    ended(page)
    assert page.inner_text(".card-title").split() == ["Calls", "get_weather"]
    assert page.locator(".card dd").inner_text() == "Oslo"
    server.say("Rain.")
    ask(page, "And?")
    expect(page.locator(".prose").last).to_have_text("Rain.")
    assert server.turns()[1]["messages"][1] == {
        "role": "assistant",
        "content": None,
        "tool_calls": [
            {
                "id": "call_1",
                "type": "function",
                "function": {"name": "get_weather", "arguments": '{"city": "Oslo"}'},
            }
        ],
    }


def test_reasoning_is_open_while_it_lasts_and_stays_out_of_the_history(
    page: Page, server: ScriptedServer
) -> None:
    server.say(Think("Hm, <b>"), Wait(), Think("well."), Say("Yes."), Wait(), Done())
    ask(page, "Is it?")
    box = page.locator(".reasoning")
    expect(box.locator("p")).to_have_text("Hm, <b>")
    expect(box).to_have_attribute("open", "")
    assert box.locator("summary").inner_text() == "Thinking"
    server.gate.set()
    expect(page.locator(".turn.assistant .prose")).to_have_text("Yes.")
    expect(box).not_to_have_attribute("open", "")
    expect(box.locator("summary")).to_have_text("Thought")
    box.locator("summary").click()
    server.gate.set()
    ended(page)
    expect(box.locator("p")).to_be_visible()
    expect(box.locator("p")).to_have_text("Hm, <b>well.")
    ask(page, "And?")
    expect(box).to_have_count(2)
    expect(box.last.locator("p")).to_have_text("Hm, <b>")
    assert server.turns()[1]["messages"][1] == {"role": "assistant", "content": "Yes."}


@pytest.mark.nightly
def test_the_gauge_reads_the_context_in_use(page: Page, server: ScriptedServer) -> None:
    gauge = page.locator("#gauge")
    expect(gauge).to_have_attribute("aria-valuetext", "0 of 2048 tokens")
    ask(page, "Hi")
    ended(page)
    expect(gauge).to_have_attribute("aria-valuetext", "34 of 2048 tokens")
    page.click("#new-chat")
    expect(gauge).to_have_attribute("aria-valuetext", "0 of 2048 tokens")


def test_scrolling_follows_only_a_reader_at_the_end(page: Page, server: ScriptedServer) -> None:
    line = "A line of the answer.\n\n"
    server.say(line * 40, Wait(), line * 10, Wait(), line * 10)
    ask(page, "Long")
    page.wait_for_selector(".prose p:nth-child(40)")
    distance = (
        "(s => s.scrollHeight - s.scrollTop - s.clientHeight)(document.getElementById('scroller'))"
    )
    page.wait_for_function(f"{distance} < 2")
    page.evaluate("document.getElementById('scroller').scrollTop = 100")
    expect(page.locator("#to-end")).to_be_visible()
    server.gate.set()
    page.wait_for_selector(".prose p:nth-child(50)")
    assert page.evaluate("document.getElementById('scroller').scrollTop") == 100
    page.click("#to-end")
    server.gate.set()
    page.wait_for_selector(".prose p:nth-child(60)")
    page.wait_for_function(f"{distance} < 2")
    expect(page.locator("#to-end")).to_be_hidden()


@pytest.mark.nightly
def test_screen_readers_hear_the_answer_once(page: Page, server: ScriptedServer) -> None:
    page.evaluate(
        """() => {
          window.heard = [];
          const region = document.getElementById("announcer");
          new MutationObserver(() => heard.push(region.textContent))
            .observe(region, {childList: true, characterData: true, subtree: true});
        }"""
    )
    server.say(*[Say(word) for word in ("Some ", "*words* ", "of ", "an ", "answer.")])
    ask(page, "Go")
    ended(page)
    page.wait_for_function("heard.length === 2")
    assert page.evaluate("heard") == ["Answering", "Answer: Some words of an answer."]
    assert page.get_attribute("#log", "aria-live") == "off"


@pytest.mark.nightly
def test_every_message_has_a_heading_that_says_whose_it_is(
    page: Page, server: ScriptedServer
) -> None:
    server.say("# Title\n\nWords.")
    ask(page, "Go")
    ended(page)
    headings = page.get_by_role("log").get_by_role("heading")
    assert headings.all_inner_texts() == ["You", "Answer", "Title"]
    levels = headings.evaluate_all("nodes => nodes.map((node) => node.tagName)")
    assert levels == ["H2", "H2", "H3"]


@pytest.mark.nightly
def test_everything_can_be_reached_by_keyboard(page: Page) -> None:
    page.evaluate("document.activeElement.blur()")
    reached = []
    for _ in range(20):
        page.keyboard.press("Tab")
        reached.append(
            page.evaluate("document.activeElement.id || document.activeElement.className")
        )
    for name in ("skip-link", "new-chat", "change-key", "theme", "prompt"):
        assert name in reached


@pytest.mark.nightly
def test_copy_takes_the_markdown_source(open_page: OpenPage, server: ScriptedServer) -> None:
    page = open_page(permissions=["clipboard-read", "clipboard-write"])
    server.say("Some **bold**\n\n```py\nx = 1\n```")
    ask(page, "Go")
    ended(page)
    page.click(".meta >> text=Copy")
    page.wait_for_selector(".meta >> text=Copied")
    assert page.evaluate("navigator.clipboard.readText()") == "Some **bold**\n\n```py\nx = 1\n```"
    page.click(".code-bar >> text=Copy")
    page.wait_for_selector(".code-bar >> text=Copied")
    assert page.evaluate("navigator.clipboard.readText()") == "x = 1"


@pytest.mark.nightly
@pytest.mark.parametrize("stored", ["{not json", "5", "null"])
def test_a_conversation_broken_in_storage_does_not_break_the_page(
    open_page: OpenPage, stored: str
) -> None:
    page = open_page()
    page.add_init_script(f"sessionStorage.setItem('sluice.conversation', '{stored}')")
    page.reload()
    page.wait_for_selector("#link-state[data-state=open]")
    assert page.locator("#welcome").is_visible()


def test_history_is_plain_json_a_reader_could_export(page: Page) -> None:
    ask(page, "Hi")
    ended(page)
    stored = json.loads(page.evaluate("sessionStorage.getItem('sluice.conversation')"))
    assert [message["role"] for message in stored["nodes"]] == ["user", "assistant"]
    assert KEY not in json.dumps(stored)
