"""Builds the documentation as a site with search, from the documents of the repository.

    python -m deploy.site FOLDER

Pages keep their places, so that links between them lead on; links to sources lead to nothing there
and stay as they are. The HTTP API's description is made anew. Needs ``mkdocs-material``.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import yaml

from gateway.routes.table import OPERATIONS
from gateway.schemas import openapi

ROOT = Path(__file__).parents[1]
PAGES: dict[str, dict[str, str]] = {
    "Get started": {"Sluice": "README.md"},
    "Clients": {
        "The API": "gateway/README.md",
        "Structured output": "grammar/README.md",
        "Clients that were tried": "docs/clients.md",
        "The chat page": "docs/chat-page.md",
    },
    "Operate": {
        "Deploying": "deploy/README.md",
        "From one machine to many": "docs/scaling.md",
        "Capacity": "docs/capacity.md",
        "Metrics and alerts": "docs/metrics.md",
        "Signing in": "docs/sign-in.md",
        "Webhooks": "docs/webhooks.md",
        "Tenants, limits, ledger": "tenants/README.md",
        "Performance": "PERFORMANCE.md",
        "Performance of the gateway": "docs/performance-gateway.md",
    },
    "Understand": {
        "Architecture": "docs/architecture.md",
        "Engine": "engine/README.md",
        "Kernels": "kernels/README.md",
        "The demo's model": "engine/demo/README.md",
        "Experiments": "docs/experiments.md",
        "Tests": "tests/README.md",
        "Contributing": "CONTRIBUTING.md",
    },
    "Reference": {
        "Models": "docs/models.md",
        "HTTP API (OpenAPI)": "docs/openapi.md",
        "What a version promises": "docs/stability.md",
        "Changelog": "docs/changelog.md",
    },
}


def _settings(sources: Path, target: Path) -> dict[str, Any]:
    return {
        "site_name": "Sluice",
        "docs_dir": str(sources),
        "site_dir": str(target),
        "use_directory_urls": False,
        "theme": {"name": "material", "font": False, "features": ["navigation.tabs"]},
        "plugins": ["search"],
        "markdown_extensions": ["tables", "admonition", "pymdownx.superfences", "md_in_html"],
        "nav": [
            {part: [{name: path} for name, path in pages.items()]} for part, pages in PAGES.items()
        ],
        # tests/test_documents.py checks links; here those to sources lead out of the site.
        "validation": {"links": {"not_found": "info", "unrecognized_links": "info"}},
    }


def _openapi() -> str:
    """A page of all operations; the whole description is beside it."""
    document = openapi.document(OPERATIONS)
    lines = [
        "# HTTP API",
        "",
        "[The description](openapi.json) as servers give it at `/openapi.json`.",
    ]
    for path, methods in document["paths"].items():
        for method, operation in methods.items():
            lines += ["", f"## {method.upper()} {path}", "", operation.get("summary", "")]
            if text := operation.get("description"):
                lines += ["", text]
    return "\n".join(lines) + "\n"


def build(target: Path) -> None:
    """Write the site into ``target``."""
    with tempfile.TemporaryDirectory() as folder:
        sources = Path(folder, "sources")
        for path in (path for pages in PAGES.values() for path in pages.values()):
            if path != "docs/openapi.md":
                (sources / path).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy(ROOT / path, sources / path)
        for image in (ROOT / "docs").glob("*.png"):
            shutil.copy(image, sources / "docs")
        (sources / "docs" / "openapi.md").write_text(_openapi(), encoding="utf-8")
        (sources / "docs" / "openapi.json").write_text(json.dumps(openapi.document(OPERATIONS)))
        config = Path(folder, "mkdocs.yml")
        config.write_text(yaml.safe_dump(_settings(sources, target), sort_keys=False))
        command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet"]
        subprocess.run([*command, "--config-file", str(config)], check=True)


if __name__ == "__main__":
    build(Path(sys.argv[1]).absolute())
