"""What a reader of the chat page does, and what it shows."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from playwright.sync_api import Page


def ask(page: Page, text: str) -> None:
    page.fill("#prompt", text)
    page.press("#prompt", "Enter")


def answer(page: Page) -> str:
    return page.locator(".turn.assistant .prose").last.inner_text()


def ended(page: Page) -> None:
    page.wait_for_selector(".turn:last-child[aria-busy=false]")
