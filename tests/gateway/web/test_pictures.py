"""Pictures on the chat page, in a real browser on a real gateway whose model sees."""

from __future__ import annotations

import base64
import io
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pytest
from PIL import Image
from playwright.sync_api import expect

from tests.conftest import PATIENCE_MS
from tests.gateway.engine_double import Play
from tests.gateway.images.drawing import picture, write_model
from tests.gateway.serving import make_config
from tests.gateway.web.conversation import ask, ended
from tests.gateway.web.site import Site, serve

if TYPE_CHECKING:
    from playwright.sync_api import Browser, BrowserContext, Page

pytestmark = pytest.mark.browser

GIVE = """([how, data]) => {
  const transfer = new DataTransfer();
  const bytes = Uint8Array.from(atob(data), (character) => character.charCodeAt(0));
  transfer.items.add(new File([bytes], "a.png", { type: "image/png" }));
  const field = document.getElementById("prompt");
  const options = { bubbles: true, cancelable: true };
  field.dispatchEvent(how === "paste"
    ? new ClipboardEvent("paste", { clipboardData: transfer, ...options })
    : new DragEvent("drop", { dataTransfer: transfer, ...options }));
}"""


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    folder = write_model(tmp_path_factory.mktemp("seeing"))
    with serve(make_config(folder), folder, tmp_path_factory.mktemp("none")) as site:
        site.double.script = lambda prompt: Play(text="A gradient.")
        yield site


@pytest.fixture
def context(chromium: Browser) -> Iterator[BrowserContext]:
    """The test fails when a page throws, logs an error or breaks its policy."""
    faults: list[str] = []
    context = chromium.new_context(viewport={"width": 1280, "height": 800})
    context.set_default_timeout(PATIENCE_MS)
    context.on("weberror", lambda error: faults.append(str(error.error)))
    context.on(
        "console",
        lambda one: faults.append(one.text) if one.type in ("error", "warning") else None,
    )
    yield context
    context.close()
    assert not faults


def opened(context: BrowserContext, site: Site, key: str) -> Page:
    page = context.new_page()
    page.goto(f"{site.gateway.url}/#key={key}")
    page.wait_for_selector("#link-state[data-state=open]")
    return page


def sizes(site: Site) -> list[tuple[int, int]]:
    return [(image.width, image.height) for image in site.double.requests[-1].images]


def file(data: bytes) -> Any:
    return {"name": "a.png", "mimeType": "image/png", "buffer": data}


def test_pictures_are_asked_about_and_kept(context: BrowserContext, site: Site) -> None:
    key = site.do(site.gateway.key("chat"))
    page = opened(context, site, key)
    waiting = page.locator("#pictures canvas")
    page.get_by_role("button", name="Add pictures").wait_for()
    page.set_input_files("#picture-files", [file(picture(64, 48)), file(picture(48, 64))])
    expect(waiting).to_have_count(2)
    for how in ("paste", "drop"):
        page.evaluate(GIVE, [how, base64.b64encode(picture(32, 32)).decode()])
    expect(waiting).to_have_count(4)
    page.get_by_role("button", name="Remove picture 2").click()
    page.get_by_role("button", name="Remove picture 3").click()
    expect(waiting).to_have_count(2)
    ask(page, "What is it?")
    ended(page)
    expect(waiting).to_have_count(0)
    asked = page.locator(".turn.user canvas")
    expect(asked).to_have_count(2)
    assert sizes(site) == [(64, 48), (32, 32)]
    ask(page, "And the other?")  # Earlier pictures go along.
    ended(page)
    assert sizes(site) == [(64, 48), (32, 32)]
    page.wait_for_function("location.hash.startsWith('#chat=')")
    page.reload()
    expect(asked).to_have_count(2)
    # From the server, too.
    page.evaluate("sessionStorage.clear()")
    page.reload()
    expect(asked).to_have_count(2)
    shown = "[...document.querySelectorAll('.turn.user canvas')].map((one) => one.width).join()"
    page.wait_for_function(f"{shown} === '64,32'")
    page.locator(".turn.user").first.get_by_role("button", name="Edit").click()
    page.fill(".question-edit textarea", "Which colours?")
    page.get_by_role("button", name="Ask this").click()
    ended(page)
    expect(asked).to_have_count(2)
    assert sizes(site) == [(64, 48), (32, 32)]


def test_photos_are_made_small_and_what_is_none_is_refused(
    context: BrowserContext, site: Site
) -> None:
    page = opened(context, site, site.do(site.gateway.key("chat")))
    photo = io.BytesIO()
    Image.effect_noise((3000, 1500), 80).save(photo, "JPEG", quality=90)
    page.set_input_files("#picture-files", [file(photo.getvalue())])
    image = page.locator("#pictures canvas")
    expect(image).to_have_count(1)
    page.wait_for_function("document.querySelector('#pictures canvas').width <= 1024")
    page.set_input_files("#picture-files", [file(b"no picture")])
    expect(page.locator("#composer-trouble")).to_contain_text("a.png is no picture")
    page.set_input_files("#picture-files", [file(picture())] * 9)
    expect(page.locator("#composer-trouble")).to_contain_text("at most 8 pictures")
    expect(image).to_have_count(8)
    assert page.get_attribute("#picture-camera", "capture") == "environment"
    page.click("#send")  # without a word
    ended(page)
    assert len(sizes(site)) == 8
    kept = page.evaluate("JSON.parse(sessionStorage.getItem('sluice.conversation'))")
    part = kept["nodes"][0]["pictures"][0]
    assert part.startswith("data:image/jpeg;base64,")
    assert len(part) <= 150_000
