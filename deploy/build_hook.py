"""Puts the commit into the wheel and the sdist, for ``sluice --version``. hatchling runs it."""

from __future__ import annotations

import importlib.util
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
        spec = importlib.util.spec_from_file_location("version", root / "gateway" / "version.py")
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        commit: str = module.commit()
        if not commit:
            self.app.display_warning("git does not say which commit this is")
            return
        made = Path(self.directory, "commit.txt")
        made.parent.mkdir(parents=True, exist_ok=True)
        made.write_text(commit + "\n", encoding="ascii")
        build_data["force_include"][str(made)] = FILE
        self._made = made

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:
        if hasattr(self, "_made"):
            self._made.unlink()
