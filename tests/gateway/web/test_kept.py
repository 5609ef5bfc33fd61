"""Conversations that the server keeps, in a real browser on a real gateway."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from playwright.sync_api import expect

from tests.conftest import PATIENCE_MS
from tests.gateway.engine_double import Play
from tests.gateway.serving import make_config
from tests.gateway.web.conversation import answer, ask, ended
from tests.gateway.web.site import Site, serve

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Locator, Page

pytestmark = pytest.mark.browser

NASTY = '<img src=x onerror="alert(1)">'


@pytest.fixture(scope="module")
def site(model_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    with serve(make_config(model_dir), model_dir, tmp_path_factory.mktemp("none")) as site:
        yield site


@pytest.fixture
def open_chat(chromium: Browser, site: Site) -> Iterator[Callable[..., Page]]:
    """The page with a key of its own; the test fails when it throws, warns or opens a dialog."""
    faults: list[str] = []
    contexts = []
    site.double.script = lambda prompt: Play(text="Fine.")

    def open_(key: str | None = None) -> Page:
        context = chromium.new_context(viewport={"width": 1280, "height": 800})
        context.set_default_timeout(PATIENCE_MS)
        contexts.append(context)
        context.on("weberror", lambda error: faults.append(str(error.error)))
        context.on("dialog", lambda dialog: faults.append(dialog.message))
        context.on(
            "console",
            lambda message: (
                faults.append(message.text) if message.type in ("error", "warning") else None
            ),
        )
        page = context.new_page()
        page.goto(f"{site.gateway.url}/#key={key or site.do(site.gateway.key('chat'))}")
        page.wait_for_selector("#link-state[data-state=open]")
        return page

    yield open_
    for context in contexts:
        context.close()
    assert not faults


@pytest.fixture
def page(open_chat: Callable[..., Page]) -> Page:
    return open_chat()


def listed(page: Page) -> Locator:
    return page.locator("#library-list a")


def talk(page: Page, *questions: str) -> None:
    for question in questions:
        ask(page, question)
        expect(page.locator(".turn.assistant").last).to_have_attribute("aria-busy", "false")
    expect(page.locator("#library-list a[aria-current]")).to_have_count(1)


def second_tab(page: Page) -> Page:
    tab = page.context.new_page()
    tab.goto(page.url.partition("#")[0])
    tab.wait_for_selector("#link-state[data-state=open]")
    return tab


def edit(page: Page, place: int = 0) -> None:
    page.locator("#library-list li button").nth(place).click()


def test_what_was_said_is_there_in_every_tab(page: Page, site: Site) -> None:
    talk(page, "How are you?")
    expect(listed(page)).to_have_text(["How are you?"])
    tab = second_tab(page)
    listed(tab).click()
    expect(tab.locator(".turn")).to_have_count(2)
    assert "Fine." in answer(tab)
    site.double.script = lambda prompt: Play(text=f"Heard {prompt.count('user')} questions.")
    ask(tab, "And now?")
    expect(page.locator(".turn")).to_have_count(4)  # without a reload
    expect(page.locator(".prose").last).to_have_text("Heard 2 questions.")
    page.reload()
    expect(page.locator(".turn")).to_have_count(4)
    tab.close()


def test_another_key_sees_none_of_it(open_chat: Callable[..., Page], page: Page) -> None:
    talk(page, "My secret")
    other = open_chat()
    expect(other.locator("#library-list p")).to_be_visible()
    expect(listed(other)).to_have_count(0)


def test_a_conversation_is_found_renamed_pinned_and_deleted(page: Page, site: Site) -> None:
    talk(page, "About foxes")
    page.click("#new-chat")
    talk(page, f"About owls {NASTY}")
    expect(listed(page)).to_have_text([f"About owls {NASTY}", "About foxes"])
    page.fill("#library-search", "FOX")
    expect(listed(page)).to_have_text(["About foxes"])
    page.fill("#library-search", "")
    expect(listed(page)).to_have_count(2)
    edit(page, 1)
    page.fill("#conversation-title", NASTY)
    page.click("text=Rename")
    expect(listed(page)).to_have_text([f"About owls {NASTY}", NASTY])
    edit(page, 1)
    page.click("#conversation-pin")
    expect(page.locator("#library-list h3")).to_have_text(["Pinned", "Today"])
    expect(listed(page)).to_have_text([NASTY, f"About owls {NASTY}"])
    edit(page, 1)
    page.click("#conversation-delete")
    page.click("text=Delete for good")
    expect(listed(page)).to_have_text([NASTY])
    expect(page.locator(".turn")).to_have_count(0)  # It was the one on the page.


def test_a_temporary_chat_is_not_kept(page: Page) -> None:
    page.check("#temporary")
    expect(page.locator("#not-kept")).to_be_visible()
    ask(page, "Between us")
    ended(page)
    page.reload()
    expect(page.locator(".turn")).to_have_count(2)
    expect(page.locator("#library-list p")).to_be_visible()
    page.uncheck("#temporary")
    talk(page, "For the record")
    expect(listed(page)).to_have_text(["For the record"])


def test_questions_and_answers_stand_beside_each_other(page: Page, site: Site) -> None:
    site.double.script = lambda prompt: Play(text=f"Answer {len(site.double.requests)}.")
    begun = len(site.double.requests)
    talk(page, "one", "two")
    first = page.locator(".turn.user").first
    first.get_by_role("button", name="Edit").click()
    page.get_by_label("The question").fill("uno")
    page.get_by_role("button", name="Ask this").click()
    expect(page.locator(".turn")).to_have_count(2)
    expect(page.locator(".prose")).to_have_text(f"Answer {begun + 3}.")
    assert "one" not in site.double.prompt()
    page.get_by_role("button", name="Ask again").click()
    expect(page.locator(".prose")).to_have_text(f"Answer {begun + 4}.")
    expect(page.locator(".choices")).to_have_text(["‹2/2›", "‹2/2›"])
    page.get_by_role("button", name="The one before").last.click()
    expect(page.locator(".prose")).to_have_text(f"Answer {begun + 3}.")
    page.get_by_role("button", name="The one before").first.click()
    expect(page.locator(".question")).to_have_text(["one", "two"])
    page.reload()
    expect(page.locator(".question")).to_have_text(["one", "two"])
    # As another device has it, too.
    expect(page.locator("#library-list a[aria-current]")).to_have_count(1)
    page.evaluate("sessionStorage.clear()")
    tab = second_tab(page)
    listed(tab).click()
    expect(tab.locator(".choices").first).to_have_text("‹2/2›")
    tab.close()


def test_an_answer_that_was_cut_goes_on(page: Page, site: Site) -> None:
    site.double.script = lambda prompt: Play(text="Once upon", finish_reason="length")
    ask(page, "A story")
    expect(page.locator(".meta em")).to_have_text("cut off at the token limit")
    site.double.script = lambda prompt: Play(text=" a time.")
    page.get_by_role("button", name="Continue").click()
    expect(page.locator(".prose")).to_have_text("Once upon a time.")
    assert site.double.prompt().endswith("Once upon")
    expect(page.locator(".turn.assistant .choices")).to_have_text("‹2/2›")


def test_a_conversation_leaves_as_text_and_comes_back(page: Page, tmp_path: Path) -> None:
    talk(page, f"# Not a title {NASTY}", "two")
    files: dict[str, str] = {}
    for kind in ("markdown", "json"):
        edit(page)
        with page.expect_download() as download:
            page.click(f"#conversation-{kind}")
        download.value.save_as(tmp_path / kind)
        files[kind] = (tmp_path / kind).read_text()
        page.click("#conversation-close")
    assert re.findall(r"^## (\w+)$", files["markdown"], re.MULTILINE) == ["Question", "Answer"] * 2
    exported: dict[str, Any] = json.loads(files["json"])
    assert [message["content"] for message in exported["messages"]][::2] == [
        f"# Not a title {NASTY}", "two",
    ]  # fmt: skip
    page.set_input_files("#library-import", tmp_path / "json")
    expect(listed(page)).to_have_count(2)
    expect(page.locator(".turn")).to_have_count(4)
    hostile = exported | {"title": NASTY, "messages": [
        {"id": "a", "parent_id": None, "role": "user", "content": NASTY},
        {"id": "b", "parent_id": "a", "role": "assistant", "content": NASTY, "reasoning": 7,
         "toolCalls": "x", "usage": NASTY, "finishReason": NASTY, "fault": NASTY},
    ]}  # fmt: skip
    (tmp_path / "hostile").write_text(json.dumps(hostile))
    page.set_input_files("#library-import", tmp_path / "hostile")
    expect(page.locator(".turn")).to_have_count(2)
    expect(page.locator(".turn.assistant .prose")).to_have_text(NASTY)
    assert page.locator("img").count() == 0
    expect(listed(page)).to_have_count(3)  # what the list has to say is said
    for bad in ("{", "{}", json.dumps(exported | {"messages": [{"id": "a", "parent_id": "b"}]})):
        (tmp_path / "bad").write_text(bad)
        page.set_input_files("#library-import", tmp_path / "bad")
        expect(page.locator("#library-trouble")).to_be_visible()
        expect(page.locator(".turn.assistant .prose")).to_have_text(NASTY)


def test_who_signs_in_next_finds_nothing_of_the_last_one(page: Page, site: Site) -> None:
    talk(page, "My secret")
    page.fill("#prompt", "half a secret")
    tab = second_tab(page)
    listed(tab).click()
    expect(tab.locator(".turn")).to_have_count(2)

    def sign_in(key: str) -> None:
        page.click("#change-key")
        page.fill("#key-input", key)
        page.press("#key-input", "Enter")

    first = page.evaluate("sessionStorage.getItem('sluice.owner /')")
    key = site.do(site.gateway.key("chat"))
    sign_in(key)
    for one in (page, tab):
        expect(one.locator(".turn")).to_have_count(0)
        expect(one.locator("#prompt")).to_have_value("")
        one.wait_for_selector("#link-state[data-state=open]")
        assert "#chat=" not in one.url
        assert "secret" not in one.evaluate("JSON.stringify({...sessionStorage})")
        expect(listed(one)).to_have_count(0)
    assert page.evaluate("sessionStorage.getItem('sluice.owner /')") != first
    talk(page, "Mine")
    sign_in(key)  # Once more the same: what is open stays.
    expect(page.locator("#key-dialog")).to_be_hidden()
    expect(page.locator(".turn")).to_have_count(2)
    tab.close()


def test_the_model_names_a_conversation_behind_all_others(page: Page, site: Site) -> None:
    named = '**"Foxes, and what they eat."**\nMore.'

    def script(prompt: str) -> Play:
        return Play(text=named if "Name this conversation" in prompt else "Mice.")

    site.double.script = script
    page.check("#titles")
    talk(page, "What do foxes eat?", "And owls?")
    expect(listed(page)).to_have_text(["Foxes, and what they eat"])
    asked = [request.priority for request in site.double.requests[-3:]]
    assert len(set(asked)) == 2
    assert sum(priority == max(asked) for priority in asked) == 1
    page.reload()
    expect(listed(page)).to_have_text(["Foxes, and what they eat"])
    page.uncheck("#titles")
    page.click("#new-chat")
    talk(page, "And bats?")
    expect(listed(page)).to_have_text(["And bats?", "Foxes, and what they eat"])


def exported(role: str, *parts: object, **more: object) -> dict[str, object]:
    content = {"content_type": "text", "parts": [*parts]}
    return {"author": {"role": role}, "content": content, **more}


def test_conversations_come_from_chatgpt(page: Page, tmp_path: Path) -> None:
    """As its export has them: with instructions, tools, pictures and answers beside each other."""
    first = {
        "root": {"message": None, "parent": None, "children": ["s"]},
        "s": {"message": exported("system", ""), "parent": "root", "children": ["q"]},
        "q": {"message": exported("user", f"Hi {NASTY}"), "parent": "s", "children": ["a", "b"]},
        "a": {"message": exported("assistant", "One."), "parent": "q", "children": []},
        "b": {
            "message": exported("assistant", "search()", recipient="browser"),
            "parent": "q",
            "children": ["t"],
        },
        "t": {"message": exported("tool", "found"), "parent": "b", "children": ["c"]},
        "c": {
            "message": exported("assistant", "Two.", metadata={"model_slug": "gpt-4o"}),
            "parent": "t",
            "children": ["d"],
        },
        "d": {
            "message": exported("user", {"asset_pointer": "x"}, "What is this?"),
            "parent": "c",
            "children": [],
        },
    }
    second = {"x": {"message": exported("user", "Alone"), "parent": None, "children": ["x"]}}
    empty: dict[str, Any] = {"y": {"message": None, "parent": None, "children": []}}
    file = tmp_path / "conversations.json"
    file.write_text(
        json.dumps(
            [
                {"title": "From elsewhere", "mapping": first, "current_node": "d"},
                {"title": None, "mapping": second, "current_node": "gone"},
                {"title": "Nothing", "mapping": empty, "current_node": "y"},
            ]
        )
    )
    page.set_input_files("#library-import", file)
    expect(listed(page)).to_have_text(["From elsewhere", "Untitled"])
    expect(page.locator(".question")).to_have_text([f"Hi {NASTY}", "What is this?"])
    expect(page.locator(".turn.assistant .prose")).to_have_text("Two.")
    expect(page.locator(".turn.assistant .choices")).to_have_text("‹2/2›")
    assert page.locator("img").count() == 0
    listed(page).last.click()
    # As a list: a page that still shows two is looked at again, where "Alone" would fail at once.
    expect(page.locator(".question")).to_have_text(["Alone"])
