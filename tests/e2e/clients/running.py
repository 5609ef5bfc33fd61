"""Installs clients, runs their programs against a server, and makes the table of what they did."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

FOLDER = Path(__file__).parent
ROOT = FOLDER.parents[2]
PAGE = ROOT / "docs" / "clients.md"
FEATURES = {
    "chat": "chat",
    "stream": "streams",
    "tools": "tools",
    "structured": "structured output",
    "embeddings": "embeddings",
    "rerank": "reranking",
    "batch": "batches",
    "errors": "errors",
}
INSTALL_TIMEOUT_S = 600
RUN_TIMEOUT_S = 300


class NotInstalled(Exception):
    """A client cannot be had here: its registry is away, or a program that installs it."""


class Client(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A client of ``versions.toml``; one without packages runs in this environment."""

    name: str
    program: str
    arguments: list[str] = []
    pip: list[str] = []
    npm: list[str] = []

    @property
    def pins(self) -> list[str]:
        return self.pip or self.npm


@dataclass(frozen=True)
class Outcome:
    """What a program has said."""

    versions: Mapping[str, str]
    features: Mapping[str, str]
    """By name: what went wrong, or nothing."""

    def failures(self) -> str:
        return "\n".join(f"{name}: {error}" for name, error in self.features.items() if error)


def clients() -> list[Client]:
    table = tomllib.loads((FOLDER / "versions.toml").read_text())
    return msgspec.convert(table["clients"], list[Client])


def try_out(client: Client, url: str, api_key: str) -> Outcome:
    """Run a client's program, once the client is installed. Raises ``NotInstalled``."""
    environment = {**os.environ, "SLUICE_URL": url, "SLUICE_KEY": api_key}
    program: str | Path = FOLDER / "programs" / client.program
    if client.npm:
        folder = _installed(client)
        node = folder / "node_modules" / "node" / "bin" / "node"
        for file in (FOLDER / "programs").glob("*.mjs"):  # which look for packages beside them
            shutil.copy(file, folder)
        command = [node if node.exists() else "node", client.program]
    elif client.pip:
        folder = _installed(client)
        environment.pop("PYTHONPATH", None)
        command = [folder / "bin" / "python", program]
    else:
        folder = ROOT
        environment["PYTHONPATH"] = str(ROOT)
        command = [sys.executable, program]
    ran = _run([*command, *client.arguments], RUN_TIMEOUT_S, cwd=folder, env=environment)
    try:
        told: dict[str, Any] = json.loads(ran.stdout.splitlines()[-1])
    except (IndexError, json.JSONDecodeError):
        raise AssertionError(f"{client.program} broke off: {ran.stderr[-4000:]}") from None
    return Outcome(told["versions"], told["features"])


def row(client: Client, outcome: Outcome) -> str:
    """A client's row of the table."""
    versions = ", ".join(f"{name} {version}" for name, version in outcome.versions.items())
    cells = [
        "–" if name not in outcome.features else "fails" if outcome.features[name] else "yes"
        for name in FEATURES
    ]
    return "| " + " | ".join([client.name, versions or "–", *cells]) + " |"


def table(rows: Sequence[str]) -> str:
    head = ["client", "version", *FEATURES.values()]
    return "\n".join([f"| {' | '.join(head)} |", "|---" * len(head) + "|", *rows])


def write_page(rows: Sequence[str]) -> None:
    """Replace the table in the page."""
    before, _, rest = PAGE.read_text().partition("<!-- clients -->\n")
    _, _, after = rest.partition("<!-- /clients -->")
    PAGE.write_text(f"{before}<!-- clients -->\n{table(rows)}\n<!-- /clients -->{after}")


def _installed(client: Client) -> Path:
    """The folder with a client: those with the same packages share one, which later runs find."""
    name = hashlib.sha256("\n".join(client.pins).encode()).hexdigest()[:16]
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "sluice" / "clients"
    folder = cache / name
    if (folder / "installed").exists():
        return folder
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    if client.npm:
        if shutil.which("npm") is None:
            raise NotInstalled("npm is not on the PATH")
        (folder / "package.json").write_text('{"private": true}')
        _install(["npm", "install", "--no-audit", "--no-fund", *client.npm], folder)
    else:
        _install([sys.executable, "-m", "venv", str(folder)], folder)
        pip = [str(folder / "bin" / "python"), "-m", "pip", "install", "--quiet"]
        _install([*pip, *client.pip], folder)
    (folder / "installed").touch()
    return folder


def _install(command: Sequence[str], folder: Path) -> None:
    try:
        done = _run(command, INSTALL_TIMEOUT_S, cwd=folder, env=os.environ)
    except subprocess.TimeoutExpired:
        raise NotInstalled(f"{command[-1]} takes longer than {INSTALL_TIMEOUT_S} s") from None
    if done.returncode != 0:
        raise NotInstalled(f"{' '.join(command)}: {done.stderr.strip()[-500:]}")


def _run(
    command: Sequence[str | Path], timeout_s: float, *, cwd: Path, env: Mapping[str, str]
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command, cwd=cwd, env=env, capture_output=True, text=True, timeout=timeout_s, check=False
    )
