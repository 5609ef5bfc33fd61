"""Puts the commit into the wheel and the sdist, for ``sluice --version``. hatchling runs it."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

FILE = "gateway/commit.txt"


class CustomBuildHook(BuildHookInterface):
    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        root = Path(self.root)
        # An editable install asks git whenever it is asked; an unpacked sdist has the file.
        if version == "editable" or not (root / ".git").exists():
            return
        name = ["git", "describe", "--always", "--exclude=*", "--dirty=+changes"]
        asked = subprocess.run(name, cwd=root, capture_output=True, text=True)
        if asked.returncode != 0:
            self.app.display_warning(f"the commit is not known: {asked.stderr.strip()}")
            return
        made = Path(self.directory, "commit.txt")
        made.parent.mkdir(parents=True, exist_ok=True)
        made.write_text(asked.stdout, encoding="ascii")
        build_data["force_include"][str(made)] = FILE
        self._made = made

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:
        if hasattr(self, "_made"):
            self._made.unlink()
