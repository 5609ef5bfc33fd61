"""The site has every document, and its search finds words of them."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

from deploy import site

ROOT = Path(__file__).parents[2]
NOT_IN_IT = {"gateway/web/vendor/README.md"}


def test_every_document_is_a_page() -> None:
    listed = subprocess.run(
        ["git", "ls-files", "*.md"], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout
    pages = {path for part in site.PAGES.values() for path in part.values()}
    assert pages - {"docs/openapi.md"} == set(listed.split()) - NOT_IN_IT


@pytest.mark.nightly
def test_it_is_built_and_searched(tmp_path: Path) -> None:
    site.build(tmp_path / "site")
    index = json.loads((tmp_path / "site" / "search" / "search_index.json").read_text())
    found = {page["location"].partition("#")[0] for page in index["docs"]}
    assert {"index.html", "gateway/index.html", "docs/metrics.html", "docs/openapi.html"} <= found
    paths = json.loads((tmp_path / "site" / "docs" / "openapi.json").read_text())["paths"]
    assert "/v1/chat/completions" in paths
