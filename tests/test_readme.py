"""The table of settings says what the code does."""

from __future__ import annotations

import re
from pathlib import Path

from gateway.config import settings

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


def test_settings_table() -> None:
    found = re.search(
        r"<!-- settings: [^>]*-->\n(.*)\n<!-- /settings -->", README.read_text(), re.DOTALL
    )
    assert found is not None
    assert found[1].strip() == settings_table()


def test_every_setting_is_explained() -> None:
    unexplained = [f"[{s.section}] {s.key}" for s in settings() if not s.description]
    assert not unexplained
