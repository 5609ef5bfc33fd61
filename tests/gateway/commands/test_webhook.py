"""``sluice webhook``, from making one to deleting it, on a real database."""

from __future__ import annotations

from pathlib import Path

import pytest

from engine.demo import MODEL_DIR
from gateway import secrets
from tests.gateway.test_cli import complaint, sluice

URL = "https://receiver.example/hooks"


@pytest.mark.pg
def test_a_webhook_on_the_command_line(tmp_path: Path, pg_dsn: str) -> None:
    secrets.create(tmp_path / "secrets.json")
    (tmp_path / "sluice.toml").write_text(
        f'[engine]\nmodel = "{MODEL_DIR}"\n'
        f'[tenants]\ndsn = "{pg_dsn}"\nsecrets_file = "secrets.json"\n'
    )

    def told(*arguments: str) -> str:
        done = sluice(*arguments, cwd=tmp_path)
        assert done.returncode == 0, done.stderr
        return done.stdout

    told("tenant", "create", "acme")
    webhook, secret = told("webhook", "create", URL, "--tenant", "acme").split()
    assert secret.startswith("whsec_")
    site, _ = told("webhook", "create", URL, "--event", "engine.down").split()
    rows = [line.split("\t") for line in told("webhook", "list").splitlines()]
    assert [row[:4] for row in rows] == [
        [webhook, "acme", "all", URL], [site, "all", "engine.down", URL]
    ]  # fmt: skip
    assert len(told("webhook", "list", "--tenant", "acme").splitlines()) == 1
    event = told("webhook", "test", webhook).split()[0]
    (row,) = told("webhook", "deliveries", webhook).splitlines()
    assert row.split("\t")[:4] == [event, "webhook.test", "pending", "0"]
    assert told("webhook", "rotate", webhook).strip() not in ("", secret)
    told("webhook", "enable", webhook)
    told("webhook", "delete", webhook)
    assert webhook not in told("webhook", "list")
    for arguments, cause in (
        (("delete", webhook), "no webhook"),
        (("create", "ftp://x"), "must begin with https://"),
        (("create", URL, "--event", "key.gone"), "'key.gone' is none of"),
    ):
        assert cause in complaint(sluice("webhook", *arguments, cwd=tmp_path))
