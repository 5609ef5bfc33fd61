"""Which Sluice this is: the version of the installed distribution, and the commit it was built of.

``pyproject.toml`` has the version, and nothing else has. A wheel carries its commit in a file that
``deploy/build_hook.py`` writes; in a checkout git is asked.
"""

from __future__ import annotations

import importlib.metadata
import subprocess
from functools import cache
from pathlib import Path

_FOLDER = Path(__file__).parent
COMMIT_FILE = "commit.txt"


@cache
def version() -> str:
    try:
        return importlib.metadata.version("sluice")
    except importlib.metadata.PackageNotFoundError:
        return "unknown"  # It runs from a folder where it is not installed.


@cache
def commit() -> str:
    """The short name of the commit, with ``+changes`` if files differ from it;
    empty if unknown."""
    try:
        return (_FOLDER / COMMIT_FILE).read_text(encoding="ascii").strip()
    except FileNotFoundError:
        pass
    if not (_FOLDER.parent / ".git").exists():
        return ""
    try:
        name = _git("rev-parse", "--short", "HEAD")
        # An image is built from a part of the files: those that are not there are no change.
        changed = _git("diff", "--name-only", "--diff-filter=d", "HEAD")
    except (OSError, subprocess.SubprocessError):
        return ""
    return f"{name}+changes" if changed else name


def _git(*arguments: str) -> str:
    """Raises ``OSError`` or ``SubprocessError``."""
    return subprocess.run(
        ["git", *arguments], cwd=_FOLDER, capture_output=True, text=True, timeout=5, check=True
    ).stdout.strip()
