"""Writes what a release is made of: a CycloneDX SBOM of an environment, and its licences.

    python -m deploy.sbom [--python PYTHON] FOLDER

The environment is that of ``PYTHON``, by default the one that runs this; it has Sluice, and should
have nothing that Sluice does not need. Needs ``cyclonedx-bom``: ``pip install -e .[release]``.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any


def write(python: str, folder: Path) -> None:
    """Write ``sbom.cdx.json`` and ``licences.tsv`` into ``folder``."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "sbom.cdx.json"
    command = [sys.executable, "-m", "cyclonedx_py", "environment", python]
    options = ["--output-reproducible", "-o", str(path)]
    subprocess.run([*command, *options], check=True)
    rows = sorted(licences(json.loads(path.read_bytes())))
    lines = "".join("\t".join(row) + "\n" for row in rows)
    (folder / "licences.tsv").write_text(lines, encoding="utf-8")


def licences(sbom: dict[str, Any]) -> Iterator[tuple[str, str, str]]:
    """Name, version and licences of each component."""
    for one in sbom["components"]:
        yield one["name"], one.get("version", ""), "; ".join(_names(one)) or "not stated"


def _names(component: dict[str, Any]) -> Iterator[str]:
    for entry in component.get("licenses", ()):
        licence = entry.get("license", {})
        name = entry.get("expression") or licence.get("id") or licence.get("name") or "custom"
        yield " ".join(name.splitlines()[0].split())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--python", default=sys.executable)
    arguments = parser.parse_args()
    write(arguments.python, arguments.folder)


if __name__ == "__main__":
    main()
