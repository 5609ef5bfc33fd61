"""Real clients, each in an environment of its own, against the demo; ``docs/clients.md`` has what
they did when it was written."""

from __future__ import annotations

from typing import Any

import pytest

from tests.e2e.clients import running
from tests.e2e.clients.running import Client

CLIENTS = running.clients()


@pytest.mark.pg
@pytest.mark.nightly
@pytest.mark.timeout(2 * running.INSTALL_TIMEOUT_S + running.RUN_TIMEOUT_S)
@pytest.mark.parametrize("client", CLIENTS, ids=[client.name for client in CLIENTS])
def test_a_client(client: Client, demo: dict[str, Any]) -> None:
    try:
        outcome = running.try_out(client, demo["url"], demo["api_key"])
    except running.NotInstalled as reason:
        pytest.skip(str(reason))
    assert not outcome.failures(), outcome.failures()
    assert running.row(client, outcome) in running.PAGE.read_text()


def test_the_page_names_all_clients() -> None:
    page = running.PAGE.read_text()
    for client in CLIENTS:
        assert f"| {client.name} |" in page
