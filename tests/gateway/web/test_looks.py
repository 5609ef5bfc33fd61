"""The page on a phone, in the dark, without motion: measured, not eyeballed."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import pytest
from playwright.sync_api import expect

from tests.gateway.web.conftest import OpenPage
from tests.gateway.web.scripted_server import Call, Done, Fail, ScriptedServer, Wait

if TYPE_CHECKING:
    from playwright.sync_api import Page

pytestmark = pytest.mark.browser

PHONE = {
    "viewport": {"width": 360, "height": 740},
    "device_scale_factor": 2,
    "is_mobile": True,
    "has_touch": True,
}
RICH = (
    "# A title\n\nWords with a [link](https://e.org) and `code`.\n\n"
    "| One | Two | Three | Four | Five | Six |\n|-|-|-|-|-|-|\n"
    + "| column of words | column of words | column of words | column of words | x | y |\n\n"
    + "```\n" + "a long line of code " * 12 + "\n```\n\n"
    + "averyveryverylongwordthatneverends" * 6
)  # fmt: skip

CONTRAST = """() => {
  const canvas = document.createElement("canvas").getContext("2d", {willReadFrequently: true});
  const rgb = (color) => {
    canvas.clearRect(0, 0, 1, 1);
    canvas.fillStyle = color;
    canvas.fillRect(0, 0, 1, 1);
    return [...canvas.getImageData(0, 0, 1, 1).data];
  };
  const luminance = ([r, g, b]) => {
    const [x, y, z] = [r, g, b].map((c) => {
      const s = c / 255;
      return s <= 0.04045 ? s / 12.92 : ((s + 0.055) / 1.055) ** 2.4;
    });
    return 0.2126 * x + 0.7152 * y + 0.0722 * z;
  };
  const ground = (node) => {
    for (; node; node = node.parentElement) {
      const color = rgb(getComputedStyle(node).backgroundColor);
      if (color[3] === 255) return color;
    }
    throw new Error("no ground");
  };
  const ratios = {};
  const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  while (walker.nextNode()) {
    const node = walker.currentNode.parentElement;
    const hidden = !node.checkVisibility() || node.closest(".visually-hidden, .skip-link");
    if (!walker.currentNode.data.trim() || hidden || node.closest("button:disabled")) continue;
    const [a, b] = [luminance(rgb(getComputedStyle(node).color)), luminance(ground(node))];
    ratios[walker.currentNode.data.trim().slice(0, 40)] =
      (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
  }
  return ratios;
}"""


def fill(page: Page, server: ScriptedServer) -> None:
    """A conversation with one of everything."""
    for script in (
        [RICH],
        [Call("", name="get_weather"), Call('{"city": "Oslo"}'), Done("tool_calls")],
        ["Cut", Done("length")],
        ["Half", Fail("The engine restarted.")],
    ):
        server.say(*script)
        page.fill("#prompt", "A question with averyveryverylongwordthatneverends" + "x" * 60)
        page.press("#prompt", "Enter")
        page.wait_for_selector(".turn:last-child[aria-busy=false]")


def test_nothing_is_wider_than_a_phone(open_page: OpenPage, server: ScriptedServer) -> None:
    page = open_page(**PHONE)
    assert page.evaluate("document.documentElement.scrollWidth") == 360
    fill(page, server)
    assert page.evaluate("document.documentElement.scrollWidth") == 360
    scroller = page.locator("#scroller")
    assert scroller.evaluate("node => node.scrollWidth <= node.clientWidth")
    # What is wider scrolls by itself.
    assert page.locator(".table-scroll").evaluate("node => node.scrollWidth > node.clientWidth")
    assert page.locator(".code-block pre").evaluate("node => node.scrollWidth > node.clientWidth")


@pytest.mark.nightly
def test_the_composer_is_always_on_screen(open_page: OpenPage, server: ScriptedServer) -> None:
    page = open_page(**PHONE)
    fill(page, server)
    page.fill("#prompt", "line\n" * 60)
    box = page.locator("#composer").bounding_box()
    assert box is not None
    assert box["y"] + box["height"] <= 740
    assert box["height"] < 740 / 2


@pytest.mark.nightly
def test_fingers_find_every_control(open_page: OpenPage, server: ScriptedServer) -> None:
    page = open_page(**PHONE)
    for selector in ("#send", "#new-chat", "#change-key", "#theme", "#openers button >> nth=0"):
        box = page.locator(selector).bounding_box()
        assert box is not None
        assert min(box["width"], box["height"]) >= 44


@pytest.mark.nightly
def test_focusing_a_field_does_not_zoom(open_page: OpenPage) -> None:
    """Phones zoom into fields whose text is under 16 px."""
    page = open_page(**PHONE)
    for field in ("#prompt", "#key-input"):
        size = page.locator(field).evaluate("node => parseFloat(getComputedStyle(node).fontSize)")
        assert size >= 16


@pytest.mark.nightly
def test_each_paragraph_is_written_from_its_own_side(
    open_page: OpenPage, server: ScriptedServer
) -> None:
    page = open_page()
    server.say("مرحبا بالعالم (1).\n\n- واحد\n\nEnglish.\n\n```py\nx = 1\n```")
    page.fill("#prompt", "ما هي عاصمة مصر؟ (test)")
    page.press("#prompt", "Enter")
    page.wait_for_selector(".turn:last-child[aria-busy=false]")
    side = """node => {
      const range = document.createRange();
      range.selectNodeContents(node);
      const [text, box] = [range.getBoundingClientRect(), node.getBoundingClientRect()];
      return box.right - text.right < text.left - box.left ? "right" : "left";
    }"""
    for selector, expected in {
        ".prose > p": "right",
        ".prose li": "right",
        ".prose > ul + p": "left",
        ".prose pre": "left",
    }.items():
        assert page.eval_on_selector(selector, side) == expected
    for selector in (".question", ".prose ul"):
        assert page.eval_on_selector(selector, "node => node.matches(':dir(rtl)')")
    page.fill("#prompt", "ما هي عاصمة مصر؟")
    assert page.eval_on_selector("#prompt", "node => node.matches(':dir(rtl)')")


@pytest.mark.nightly
def test_a_phone_is_not_told_about_its_shift_key(open_page: OpenPage) -> None:
    assert open_page(**PHONE).locator("#hint").is_hidden()
    assert open_page().locator("#hint").is_visible()


@pytest.mark.parametrize(
    ("scheme", "device"),
    [
        ("light", {}),
        ("dark", PHONE),
        pytest.param("light", PHONE, marks=pytest.mark.nightly),
        pytest.param("dark", {}, marks=pytest.mark.nightly),
    ],
    ids=["light", "dark on a phone", "light on a phone", "dark"],
)
def test_every_text_has_contrast(
    open_page: OpenPage, server: ScriptedServer, scheme: str, device: dict[str, object]
) -> None:
    """WCAG AA: 4.5 to 1 for all text, measured on the page as it is shown."""
    page = open_page(color_scheme=scheme, reduced_motion="reduce", **device)
    ratios = page.evaluate(CONTRAST)
    fill(page, server)
    ratios |= page.evaluate(CONTRAST)
    page.click("#change-key")
    ratios |= page.evaluate(CONTRAST)
    assert len(ratios) > 15
    assert {text: ratio for text, ratio in ratios.items() if ratio < 4.5} == {}


def ground(page: Page) -> int:
    color = page.evaluate("getComputedStyle(document.documentElement).backgroundColor")
    return sum(int(part) for part in re.findall(r"\d+", color)[:3])


@pytest.mark.nightly
def test_light_and_dark_follow_the_system_until_the_reader_decides(open_page: OpenPage) -> None:
    page = open_page(color_scheme="dark")
    assert ground(page) < 200
    page.emulate_media(color_scheme="light")
    assert ground(page) > 600
    expect(page.locator("#theme")).to_have_attribute("aria-label", "Switch to the dark theme")
    page.click("#theme")
    assert ground(page) < 200
    expect(page.locator("#theme")).to_have_attribute("aria-label", "Switch to the light theme")
    page.reload()
    assert ground(page) < 200
    page.click("#theme")
    assert ground(page) > 600


@pytest.mark.nightly
def test_reduced_motion_stills_everything(open_page: OpenPage, server: ScriptedServer) -> None:
    page = open_page(reduced_motion="reduce")
    server.say(Wait(), "x")
    page.fill("#prompt", "Go")
    page.press("#prompt", "Enter")
    page.wait_for_selector(".turn.pending")
    assert page.evaluate("document.getAnimations().length") == 0
    moving = open_page()
    server.say(Wait(), "x")
    moving.fill("#prompt", "Go")
    moving.press("#prompt", "Enter")
    moving.wait_for_selector(".turn.pending")
    assert moving.evaluate("document.getAnimations().length") > 0


@pytest.mark.nightly
def test_the_wall_gauge_lies_flat_on_a_phone(open_page: OpenPage) -> None:
    wide = open_page().locator("#gauge").bounding_box()
    flat = open_page(**PHONE).locator("#gauge").bounding_box()
    assert wide is not None
    assert flat is not None
    assert wide["height"] > 10 * wide["width"]
    assert flat["width"] > 50 * flat["height"]
