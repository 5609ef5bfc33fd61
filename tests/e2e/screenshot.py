"""The README's picture: ``make screenshot``, or ``python -m tests.e2e.screenshot [FILE]``.

A real demo, a real conversation, real Chromium: a chat on a desktop in the light, and the page as a
phone shows it first in the dark.
"""

from __future__ import annotations

import base64
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from playwright.sync_api import sync_playwright

from tests.conftest import CHROMIUM_ARGS, chromium_path
from tests.e2e.demo_process import DemoProcess

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

TARGET = Path(__file__).parents[2] / "docs" / "chat-page.png"
MAX_BYTES = 300_000
DESKTOP: dict[str, Any] = {"viewport": {"width": 1180, "height": 780}, "color_scheme": "light"}
PHONE: dict[str, Any] = {
    "viewport": {"width": 390, "height": 780},
    "color_scheme": "dark",
    "device_scale_factor": 1.5,
    "is_mobile": True,
    "has_touch": True,
}
QUESTIONS = (
    "Make a table of the capitals of France, Spain and Italy.",
    "Write a Python function that adds two numbers.",
)

# Both pages on one sheet; the phone stands before the desktop's lower right corner.
SHEET = """
<style>
  body {{ margin: 0; padding: 28px; width: 1330px; height: 850px; background: #dfe9ea;
          position: relative; box-sizing: border-box }}
  img {{ position: absolute; border-radius: 14px; box-shadow: 0 2px 24px #0d4a5840 }}
  #desktop {{ left: 28px; top: 28px; width: 1100px }}
  #phone {{ right: 28px; bottom: 28px; width: 330px; border-radius: 26px }}
</style>
<img id="desktop" src="data:image/png;base64,{desktop}">
<img id="phone" src="data:image/png;base64,{phone}">
"""


def ask(page: Page, question: str) -> None:
    page.fill("#prompt", question)
    page.press("#prompt", "Enter")


def picture(
    browser: Browser, ready: dict[str, Any], options: dict[str, Any], questions: Sequence[str]
) -> str:
    """The page after these questions, as base64 of a PNG."""
    context = browser.new_context(reduced_motion="reduce", **options)
    page = context.new_page()
    page.goto(f"{ready['url']}/#key={ready['api_key']}")
    page.wait_for_selector("#link-state[data-state=open]")
    for question in questions:
        ask(page, question)
        page.wait_for_selector(".turn:last-child[aria-busy=false]", timeout=60_000)
    if questions:  # They are in the list, too.
        page.wait_for_selector("#library-list a[aria-current]")
    page.evaluate("document.activeElement.blur()")
    page.mouse.move(0, 0)
    shot = page.screenshot()
    context.close()
    return base64.b64encode(shot).decode()


def main(target: Path) -> None:
    with (
        tempfile.TemporaryDirectory(prefix="sluice-screenshot-") as folder,
        DemoProcess(Path(folder) / "data") as demo,
        sync_playwright() as playwright,
    ):
        ready = demo.wait_ready()
        browser = playwright.chromium.launch(executable_path=chromium_path(), args=CHROMIUM_ARGS)
        shots = {
            "desktop": picture(browser, ready, DESKTOP, QUESTIONS),
            "phone": picture(browser, ready, PHONE, ()),
        }
        sheet = browser.new_page(viewport={"width": 1330, "height": 850})
        sheet.set_content(SHEET.format(**shots))
        sheet.screenshot(path=target)
        browser.close()
    size = target.stat().st_size
    if size > MAX_BYTES:
        sys.exit(f"{target} has {size} bytes, {MAX_BYTES} is the most")
    print(f"{target}: {size} bytes")


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else TARGET)
