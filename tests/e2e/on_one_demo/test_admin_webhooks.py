"""Webhooks on the admin page, of a real demo in real Chromium."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import pytest
from playwright.sync_api import expect

if TYPE_CHECKING:
    from playwright.sync_api import Browser

pytestmark = [pytest.mark.browser, pytest.mark.pg]

URL = "http://127.0.0.1:9/hooks"


def test_a_webhook_is_made_tried_and_deleted(chromium: Browser, demo: dict[str, Any]) -> None:
    context = chromium.new_context(viewport={"width": 1280, "height": 900})
    context.set_default_timeout(60_000)
    page = context.new_page()
    faults: list[str] = []
    page.on("pageerror", lambda error: faults.append(str(error)))
    page.goto(f"{demo['url']}/admin/#key={demo['admin_key']}")
    page.wait_for_selector("#link-state[data-state=open]")
    card = page.get_by_role("region", name="Webhooks")
    expect(card).to_contain_text("Nobody is told.")

    card.get_by_label("URL").fill("http://u:p@127.0.0.1/")
    card.get_by_role("button", name="Create a webhook").click()
    expect(card.get_by_role("status")).to_contain_text("no user name or password")
    card.get_by_label("URL").fill(URL)
    card.get_by_text("Only some events").click()
    card.get_by_label("engine.down").check()
    card.get_by_role("button", name="Create a webhook").click()
    secret = page.locator("#secret")
    expect(secret).to_have_value(re.compile(r"whsec_\S{44}"))
    expect(page.locator("#secret-title")).to_have_text("The new secret")
    first = secret.input_value()
    page.get_by_role("button", name="Done").click()
    row = card.locator("tr[data-webhook]")
    expect(row).to_contain_text("engine.down")
    assert "budget" not in row.inner_text()

    # The page says why an address inside the network gets nothing.
    row.get_by_role("button", name="Test").click()
    sent = card.get_by_role("region", name="Deliveries").locator("tr[data-event]")
    expect(sent).to_contain_text("webhook.test")
    expect(sent).to_contain_text("which is not a public address")
    expect(sent).to_contain_text("again ")
    row.get_by_role("button", name="Deliveries").click()
    expect(sent).to_have_count(0)

    row.get_by_role("button", name="Replace secret").click()
    page.get_by_role("button", name="Replace it").click()
    expect(secret).to_have_value(re.compile(r"whsec_\S{44}"))
    assert secret.input_value() != first
    page.get_by_role("button", name="Done").click()
    expect(row).to_contain_text("which is not a public address")  # the last failure
    row.get_by_role("button", name="Disable").click()
    expect(row).to_contain_text("disabled ")
    row.get_by_role("button", name="Enable").click()
    expect(row.get_by_role("button", name="Disable")).to_be_visible()
    row.get_by_role("button", name="Delete").click()
    page.get_by_role("button", name="Delete it").click()
    expect(row).to_have_count(0)
    context.close()
    assert not faults
