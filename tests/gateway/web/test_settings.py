"""What a reader sets for the answers, and what the page shows of one on demand."""

from __future__ import annotations

import json
import math
from typing import TYPE_CHECKING, Any

import pytest
from playwright.sync_api import expect

from tests.gateway.web.conversation import ask, ended
from tests.gateway.web.scripted_server import Call, Done, Say, ScriptedServer

if TYPE_CHECKING:
    from playwright.sync_api import Page

pytestmark = pytest.mark.browser

SCHEMA: dict[str, Any] = {"type": "object", "properties": {"city": {"type": "string"}}}


def use(page: Page) -> None:
    page.click("text=Use these")
    expect(page.locator("#settings-dialog")).to_be_hidden()


def sent(page: Page, server: ScriptedServer) -> dict[str, Any]:
    """The fields of the next request, but for those of every one."""
    ask(page, "Go")
    ended(page)
    always = ("type", "id", "resumable", "model")
    return {name: value for name, value in server.turns()[-1].items() if name not in always}


def test_settings_go_with_every_question_and_outlast_a_reload(
    page: Page, server: ScriptedServer
) -> None:
    page.click("#settings")
    page.get_by_label("System prompt").fill("Be kind.")
    page.get_by_label("Temperature").fill("0.5")
    page.get_by_label("Most tokens").fill("64")
    page.get_by_label("Stop at, one a line").fill("END\n###")
    use(page)
    page.reload()
    page.wait_for_selector("#link-state[data-state=open]")
    assert sent(page, server) == {
        "messages": [
            {"role": "system", "content": "Be kind."},
            {"role": "user", "content": "Go"},
        ],
        "temperature": 0.5,
        "max_tokens": 64,
        "stop": ["END", "###"],
    }
    page.click("#settings")
    page.click("text=Clear all")
    use(page)
    assert set(sent(page, server)) == {"messages"}


def test_a_schema_is_checked_while_it_is_written(page: Page, server: ScriptedServer) -> None:
    page.click("#settings")
    page.get_by_label("Form of the answer").select_option("json_schema")
    for text, words in {
        "{": "This is no JSON",
        "[]": "A schema is an object",
        '{"type": "text"}': '"type" is "text"; it is one of',
        '{"properties": {"a": {"type": "strin"}}}': "/properties/a",
        '{"anyOf": []}': '"anyOf" must be a list',
        '{"properties": []}': '"properties" must be an object',
        '{"pattern": "("}': '"pattern" is no regular expression',
        '{"enum": []}': '"enum" must be a list',
        '{"$ref": "#/$defs/a"}': '"$ref" names nothing',
        '{"items": 7}': "/items must be a schema",
    }.items():
        page.get_by_label("Schema", exact=True).fill(text)
        expect(page.locator("#schema-fault")).to_contain_text(words)
        page.click("text=Use these")  # It stays.
        expect(page.locator("#settings-dialog")).to_be_visible()
    good = SCHEMA | {"$defs": {"a/b": {}}, "items": {"$ref": "#/$defs/a~1b"}}
    page.get_by_label("Schema", exact=True).fill(json.dumps(good))
    expect(page.locator("#schema-fault")).to_have_text("The schema is well formed.")
    use(page)
    assert sent(page, server)["response_format"] == {
        "type": "json_schema",
        "json_schema": {"name": "answer", "schema": good, "strict": True},
    }


def test_presets_are_kept_in_the_browser_until_one_signs_out(
    page: Page, server: ScriptedServer
) -> None:
    page.click("#settings")
    page.get_by_label("Seed").fill("7")
    page.get_by_label("Name of the preset").fill("<b>exact</b>")
    page.click("text=Save as preset")
    page.click("text=Clear all")
    page.get_by_label("Presets").select_option("<b>exact</b>")
    expect(page.get_by_label("Seed")).to_have_value("7")
    use(page)
    assert sent(page, server)["seed"] == 7
    page.click("#change-key")
    with page.expect_event("load"):  # A change of the address alone counts as a navigation.
        page.get_by_role("button", name="Sign out test").click()
    expect(page.locator("#key-dialog")).to_be_visible()
    assert "exact" not in page.evaluate("JSON.stringify([{...localStorage}, {...sessionStorage}])")


def test_figures_and_probabilities_are_shown_on_demand(page: Page, server: ScriptedServer) -> None:
    def token(text: str, probability: float, **others: float) -> dict[str, Any]:
        top = {text: probability, **others}
        return {
            "token": text,
            "logprob": math.log(probability),
            "top_logprobs": [{"token": t, "logprob": math.log(p)} for t, p in top.items()],
        }

    page.click("#settings")
    page.get_by_label("Show how likely each token was").check()
    use(page)
    server.say(Say("The <i>", [token("The", 0.95), token(" <i>", 0.05, fox=0.9)]), Done())
    fields = sent(page, server)
    assert (fields["logprobs"], fields["top_logprobs"]) == (True, 5)
    page.click(".figures summary")
    text = page.locator(".figures dl").inner_text()
    for words in ("scripted", "21 tokens", "16 tokens"):
        assert words in text
    page.click("text=Probabilities")
    expect(page.locator(".prose")).to_be_hidden()
    tokens = page.locator(".heat span")
    assert tokens.all_text_contents() == ["The", " <i>"]
    assert [node.get_attribute("class") for node in tokens.all()] == ["heat-0", "heat-4"]
    assert tokens.nth(1).get_attribute("title") == '" <i>" 5.0 %\n"fox" 90.0 %'
    page.click("text=Probabilities")
    expect(page.locator(".prose")).to_have_text("The <i>")


def test_keys_do_what_the_help_says(page: Page) -> None:
    page.evaluate("document.activeElement.blur()")
    page.keyboard.press("?")
    expect(page.locator("#help-dialog")).to_be_visible()
    page.keyboard.press("Escape")
    page.keyboard.press("Alt+s")
    expect(page.locator("#settings-dialog")).to_be_visible()
    page.keyboard.press("Escape")
    page.evaluate("document.activeElement.blur()")
    page.keyboard.press("/")
    expect(page.locator("#prompt")).to_be_focused()
    page.keyboard.type("why? /")
    expect(page.locator("#prompt")).to_have_value("why? /")
    shown = page.locator("#library").is_visible()
    page.keyboard.press("Alt+k")
    expect(page.locator("#library")).to_be_visible(visible=not shown)


def test_a_draft_outlasts_a_reload(page: Page, server: ScriptedServer) -> None:
    page.fill("#prompt", "Half a thou")
    page.reload()
    expect(page.locator("#prompt")).to_have_value("Half a thou")
    ask(page, "Whole")
    ended(page)
    page.reload()
    expect(page.locator("#prompt")).to_have_value("")


def test_code_is_coloured_and_stays_what_it_was(page: Page, server: ScriptedServer) -> None:
    code = 'def f(x):  # <b>"no"</b>\n    return "a\\"b" + str(0x1F) if x else None\n'
    server.say(f"```python\n{code}```\n\n```constructor\n<b>x</b>\n```")
    ask(page, "Code")
    ended(page)
    assert page.locator("pre code").first.text_content() == code.rstrip("\n")
    found = page.evaluate(
        "[...document.querySelectorAll('pre code span')].map((n) => [n.className, n.textContent])"
    )
    assert found == [
        ["code-keyword", "def"],
        ["code-comment", '# <b>"no"</b>'],
        ["code-keyword", "return"],
        ["code-string", '"a\\"b"'],
        ["code-number", "0x1F"],
        ["code-keyword", "if"],
        ["code-keyword", "else"],
        ["code-keyword", "None"],
    ]
    assert page.locator("pre b").count() == 0


def test_tools_are_called_and_their_answers_filled_in_by_hand(
    page: Page, server: ScriptedServer
) -> None:
    page.click("#settings")
    field = page.get_by_label("Tools, as JSON")
    for text, words in {
        "{": "This is no JSON",
        "[]": "The list has no tool",
        '{"name": "get weather"}': 'needs a "name" of letters',
        '[{"name": "a"}, {"name": "b", "parameters": {"type": "text"}}]': "Tool 2, b: The schema",
    }.items():
        field.fill(text)
        expect(page.locator("#tools-fault")).to_contain_text(words)
        page.click("text=Use these")  # It stays.
        expect(page.locator("#settings-dialog")).to_be_visible()
    weather = {"name": "get_weather", "parameters": SCHEMA}
    field.fill(json.dumps(weather))
    expect(page.locator("#tools-fault")).to_have_text("The tools are well formed.")
    use(page)
    call = Call('{"city": "Oslo"}', name="get_weather")
    server.say(call, Done("tool_calls"))
    assert sent(page, server)["tools"] == [{"type": "function", "function": weather}]
    expect(page.locator(".card")).to_contain_text("Oslo")
    server.say("It is sunny there.")
    page.get_by_label("What get_weather answers").fill("<b>sunny</b>")
    page.get_by_role("button", name="Give it to the model").click()
    expect(page.locator(".prose").last).to_have_text("It is sunny there.")
    expect(page.locator(".results")).to_have_count(0)
    asked, given = server.turns()[-1]["messages"][-2:]
    assert asked["tool_calls"][0]["function"]["name"] == "get_weather"
    assert given == {
        "role": "tool", "tool_call_id": asked["tool_calls"][0]["id"], "content": "<b>sunny</b>",
    }  # fmt: skip
    page.reload()
    expect(page.locator(".question").last).to_have_text("<b>sunny</b>")
    assert page.locator(".turn.user").last.get_by_role("button", name="Edit").count() == 0


def test_answers_of_two_models_stand_side_by_side(page: Page, server: ScriptedServer) -> None:
    server.models = ["small", "large"]
    page.reload()
    page.wait_for_selector("#link-state[data-state=open]")
    server.say("One.")
    ask(page, "Go")
    ended(page)
    server.say("**Two.**")
    page.get_by_label("Ask another model").select_option("large")
    expect(page.locator(".prose")).to_have_text("Two.")
    assert server.turns()[-1]["model"] == "large"
    assert server.turns()[-1]["messages"] == server.turns()[-2]["messages"]
    page.get_by_role("button", name="Side by side").click()
    expect(page.locator(".compared .prose")).to_have_text(["One.", "Two."])
    expect(page.locator(".compared strong")).to_have_text("Two.")
    page.get_by_role("button", name="Side by side").click()
    expect(page.locator(".prose")).to_have_text("Two.")


PASTE = """([name, type, text]) => {
  const clipboardData = new DataTransfer();
  clipboardData.items.add(new File([text], name, { type }));
  const event = new ClipboardEvent("paste", { clipboardData, bubbles: true, cancelable: true });
  document.getElementById("prompt").dispatchEvent(event);
  return event.defaultPrevented;
}"""


def test_files_are_pasted_as_text_and_pictures_refused(page: Page) -> None:
    trouble = page.locator("#composer-trouble")
    expect(page.get_by_role("button", name="Add pictures")).to_be_hidden()
    assert page.evaluate(PASTE, ["a.png", "image/png", "x"])
    expect(trouble).to_contain_text("sees no pictures: write what is in it")
    page.fill("#prompt", "Read this. ")
    expect(trouble).to_be_hidden()
    assert page.evaluate(PASTE, ["notes.md", "text/markdown", "# Notes\n"])
    expect(page.locator("#prompt")).to_have_value("Read this. notes.md:\n```\n# Notes\n```\n")
    for name, text in (("a.bin", "a\0b"), ("long.txt", "x" * 200_001)):
        page.evaluate(PASTE, [name, "", text])
        expect(trouble).to_contain_text(f"{name} is no text of at most 200,000 bytes")
