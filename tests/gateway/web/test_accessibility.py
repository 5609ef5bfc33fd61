"""axe finds no violation of WCAG 2.2 AA on the chat page: light, dark, on a desktop and a phone."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from tests.gateway.web.conftest import OpenPage
from tests.gateway.web.conversation import ask, ended
from tests.gateway.web.scripted_server import Done, Say, ScriptedServer, Think
from tests.npm import installed

if TYPE_CHECKING:
    from playwright.sync_api import Page

pytestmark = [pytest.mark.browser, pytest.mark.nightly]

PACKAGE = "axe-core@4.11.0"
TAGS = ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa", "best-practice"]
ANSWER = """# A title

Some **bold** words, `code`, [a link](https://example.com) and $x^2$.

| a | b |
|---|---|
| 1 | 2 |

- [x] done

```python
def f(x):  # why
    return "s" + 1
```
"""
PHONE: dict[str, Any] = {"viewport": {"width": 360, "height": 740}}


def violations(page: Page) -> list[str]:
    found = page.evaluate(
        "(tags) => axe.run(document, {runOnly: tags, resultTypes: ['violations']})", TAGS
    )["violations"]
    return [f"{one['id']}: {one['nodes'][0]['html'][:200]}" for one in found]


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("size", [{}, PHONE], ids=["desktop", "phone"])
def test_axe_finds_nothing(
    open_page: OpenPage, server: ScriptedServer, scheme: str, size: dict[str, Any]
) -> None:
    source = (installed(PACKAGE) / "node_modules/axe-core/axe.min.js").read_text()
    page = open_page(color_scheme=scheme, reduced_motion="reduce", **size)
    page.evaluate(source)  # The page's policy forbids a script of another kind.
    found = {"welcome": violations(page)}
    token = {"token": "x", "logprob": -3.0, "top_logprobs": []}
    server.say(Think("Hm."), Say(ANSWER, [token]), Done("length"))
    ask(page, "Show all")
    ended(page)
    ask(page, "And again")
    ended(page)
    page.locator(".figures summary").first.click()
    page.get_by_role("button", name="Ask again").last.click()
    ended(page)
    found["conversation"] = violations(page)
    page.get_by_role("button", name="Probabilities").last.click()
    page.get_by_role("button", name="Edit").first.click()
    if page.locator("#library").is_hidden():
        page.click("#library-toggle")
    found["list, edit and probabilities"] = violations(page)
    page.keyboard.press("Escape")
    for opener, dialog in (("#settings", "#settings-dialog"), ("#change-key", "#key-dialog")):
        page.click(opener)
        found[dialog] = violations(page)
        page.keyboard.press("Escape")
    page.evaluate("document.getElementById('help-dialog').showModal()")
    found["help"] = violations(page)
    assert [f"{name}: {one}" for name in found for one in found[name]] == []
