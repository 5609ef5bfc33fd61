"""Chromium signs in on the real pages at a provider of another maker: npm's ``oidc-provider``."""

from __future__ import annotations

import asyncio
import shutil
import socket
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
import pytest
from playwright.sync_api import expect

from engine.text.tokenizer import Tokenizer
from gateway.config.oidc import OidcConfig
from tests.gateway.engine_double import EngineDouble
from tests.gateway.serving import Gateway, double_client, make_config, served
from tests.npm import installed

if TYPE_CHECKING:
    from playwright.sync_api import Browser

pytestmark = [pytest.mark.browser, pytest.mark.nightly]

PACKAGE = "oidc-provider@9"
SCRIPT = Path(__file__).parent / "oidc_provider.mjs"
SECRET = "a secret of forty characters, as it demands"


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def script() -> Path:
    """The provider, beside the package that it needs."""
    folder = installed(PACKAGE)
    shutil.copy(SCRIPT, folder)
    return folder / SCRIPT.name


@contextmanager
def provider(client_id: str, redirect_uri: str) -> Iterator[str]:
    """Its issuer."""
    port = free_port()
    command = ("node", str(script()), str(port), client_id, SECRET, redirect_uri)
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == b"ready\n"
            yield f"http://127.0.0.1:{port}"
        finally:
            process.kill()


@contextmanager
def gateway_at(model_dir: Path, port: int, oidc: OidcConfig) -> Iterator[Gateway]:
    """In a thread of its own, since the browser is driven from this one."""
    ready, found = threading.Event(), list[Gateway]()
    stops: list[tuple[asyncio.AbstractEventLoop, asyncio.Event]] = []

    async def serve() -> None:
        config = msgspec.structs.replace(make_config(model_dir, port=port), oidc=oidc)
        engine = double_client(config, EngineDouble(Tokenizer.load(model_dir)))
        async with served(config, engine) as gateway:
            stops.append((asyncio.get_running_loop(), asyncio.Event()))
            found.append(gateway)
            ready.set()
            await stops[0][1].wait()

    thread = threading.Thread(target=lambda: asyncio.run(serve()))
    thread.start()
    try:
        assert ready.wait(60)
        yield found[0]
    finally:
        for loop, stop in stops:
            loop.call_soon_threadsafe(stop.set)
        thread.join()


def test_a_person_signs_in_on_both_pages(
    model_dir: Path, tmp_path: Path, chromium: Browser
) -> None:
    port = free_port()
    site = f"http://127.0.0.1:{port}"
    (tmp_path / "secret").write_text(SECRET)
    with provider("sluice", f"{site}/auth/callback") as issuer:
        oidc = OidcConfig(
            issuer=issuer,
            client_id="sluice",
            client_secret_file=str(tmp_path / "secret"),
            public_url=site,
        )
        with gateway_at(model_dir, port, oidc):
            page = chromium.new_context().new_page()
            page.goto(f"{site}/admin/")
            page.get_by_role("button", name="Sign in").click()
            page.locator("input[name=login]").fill("jane")
            page.locator("input[name=password]").fill("any")
            page.locator("button[type=submit]").click()
            page.locator("button[type=submit]").click()  # She agrees.
            page.wait_for_url(f"{site}/admin/")
            expect(page.locator("#link-state")).to_have_text("Connected")
            page.locator("#new-tenant-name").fill("made by jane")
            page.locator("#new-tenant-name").press("Enter")
            expect(page.locator("#tenants")).to_contain_text("made by jane")
            stored = "JSON.stringify([document.cookie, {...sessionStorage}, {...localStorage}])"
            assert "session." not in page.evaluate(stored)
            assert "sk-" not in page.evaluate(stored)

            page.goto(f"{site}/")
            expect(page.locator("#link-state")).to_have_attribute("data-state", "open")
            page.locator("#prompt").fill("hello")
            page.locator("#prompt").press("Enter")
            expect(page.locator("#transcript")).to_contain_text("You said: hello")

            page.locator("#change-key").click()
            page.get_by_role("button", name="Sign out jane@acme.example").click()
            expect(page.get_by_role("button", name="Sign in")).to_be_visible()
            assert page.request.get(f"{site}/admin/v1/tenants").status == 401
