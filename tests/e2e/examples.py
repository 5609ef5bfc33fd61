"""The examples of the documents, to run as they are printed."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from textwrap import dedent
from typing import NamedTuple

ROOT = Path(__file__).parents[2]
PATH = f"{sys.prefix}/bin:{os.environ['PATH']}"
"""Finds ``sluice`` first."""
_CONSOLE = re.compile(r"^( *)```(console|bash)\n(.*?)^\1```", re.DOTALL | re.MULTILINE)


class Command(NamedTuple):
    """What a reader types."""

    text: str
    told: tuple[str, ...] = ()
    """What the document says that it prints."""


def example(readme: str, language: str, word: str) -> str:
    """The one example in that language that has the word in it."""
    blocks = re.findall(rf"```{language}\n(.*?)```", (ROOT / readme).read_text(), re.DOTALL)
    found: str
    (found,) = (block for block in blocks if word in block)
    return found


def commands(page: str) -> list[list[Command]]:
    """What a page has its reader type, by its blocks; a script is one command."""
    return [
        [Command(dedent(text))] if language == "bash" else _typed(dedent(text))
        for _, language, text in _CONSOLE.findall((ROOT / page).read_text())
    ]


def block(page: str, word: str) -> list[Command]:
    """The commands of the one block of a page that has the word in it."""
    (found,) = (one for one in commands(page) if any(word in command.text for command in one))
    return found


def _typed(console: str) -> list[Command]:
    found: list[Command] = []
    for line in console.splitlines():
        if line.startswith("$ "):
            found.append(Command(line.removeprefix("$ ")))
        elif found[-1].text.endswith("\\"):
            found[-1] = Command(f"{found[-1].text}\n{line}")
        elif line:
            found[-1] = found[-1]._replace(told=(*found[-1].told, line))
    return found


class Shell:
    """Where a reader types."""

    def __init__(
        self, folder: Path, stands_for: Mapping[str, str], env: Mapping[str, str] | None = None
    ) -> None:
        """stands_for: words of the documents that stand for something of the reader's own."""
        self.folder = folder
        self.stands_for = dict(stands_for)
        self.env = {**os.environ, "PYTHONPATH": str(ROOT), "PATH": PATH, **(env or {})}

    def meant(self, text: str) -> str:
        """What the reader types in place of a text of a document."""
        for word, own in self.stands_for.items():
            text = text.replace(word, own)
        return text

    def run(self, command: Command) -> str:
        """What a command prints; it must succeed, and print what the document says."""
        done = subprocess.run(
            ["bash", "-euc", self.meant(command.text)],
            cwd=self.folder,
            env=self.env,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=300,
        )
        assert done.returncode == 0, f"{command.text}\n{done.stdout}"
        for line in command.told:
            assert line in done.stdout, f"{command.text}\n{done.stdout}"
        return done.stdout
