"""The tables of routes and of settings say what the code does."""

from __future__ import annotations

import re
from pathlib import Path

from gateway.config import settings
from gateway.routes.table import OPERATIONS
from gateway.schemas.operation import SOCKET

README = Path(__file__).parent.parent / "gateway" / "README.md"


def settings_table() -> str:
    """The table as the README must have it: to update, print it."""
    lines: list[str] = []
    section = ""
    for setting in settings():
        if setting.section != section:
            section = setting.section
            lines += ["", f"**`[{section}]`**", "", "| key | default | meaning |", "|---|---|---|"]
        default = f"`{setting.default}`" if setting.default else "–"
        meaning = setting.description.replace("``", "`").replace("|", "\\|")
        lines.append(f"| `{setting.key}` | {default} | {meaning} |")
    return "\n".join(lines).strip()


def routes_table() -> str:
    """As ``settings_table``."""
    lines = ["| route | a key needs | | what |", "|---|---|---|---|"]
    for one in OPERATIONS:
        if one.summary:
            method = "WebSocket" if one.method == SOCKET else one.method
            marks = ["reserves"] * one.reserves + ["`Idempotency-Key`"] * one.idempotent
            route = f"`{method} {one.path.replace(':path', '')}`"
            needs = "–" if one.scope is None else f"`{one.scope}`"
            lines.append(f"| {route} | {needs} | {', '.join(marks)} | {one.summary} |")
    return "\n".join(lines)


def marked(name: str) -> str:
    """The part of the README between two comments."""
    pattern = rf"<!-- {name}: [^>]*-->\n(.*)\n?<!-- /{name} -->"
    found = re.search(pattern, README.read_text(), re.DOTALL)
    assert found is not None
    return found[1].strip()


def test_settings_table() -> None:
    assert marked("settings") == settings_table()


def test_routes_table() -> None:
    assert marked("routes") == routes_table()


def test_every_setting_is_explained() -> None:
    unexplained = [f"[{s.section}] {s.key}" for s in settings() if not s.description]
    assert not unexplained
