"""What a release has: the sdist, the wheel that is built of it, its commit, its SBOM."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from deploy import sbom
from gateway.version import COMMIT_FILE, commit

ROOT = Path(__file__).parents[2]


def git(*arguments: str) -> str:
    return subprocess.run(
        ["git", *arguments], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout


@pytest.mark.nightly
def test_the_wheel_of_the_sdist_has_every_file_and_the_commit(tmp_path: Path) -> None:
    build = [sys.executable, "-m", "build", "--outdir", str(tmp_path), str(ROOT)]
    subprocess.run(build, check=True, capture_output=True)
    (path,) = tmp_path.glob("sluice-*.whl")
    wheel = zipfile.ZipFile(path)
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    packages = project["tool"]["hatch"]["build"]["targets"]["wheel"]["packages"]
    assert set(git("ls-files", *packages).split("\n")) - {""} <= set(wheel.namelist())
    assert wheel.read(f"gateway/{COMMIT_FILE}").decode().strip() == commit()
    metadata = wheel.read(f"sluice-{project['project']['version']}.dist-info/METADATA").decode()
    extras = re.findall(r"^Provides-Extra: (.*)$", metadata, re.MULTILINE)
    assert set(extras) == set(project["project"]["optional-dependencies"])


def test_a_checkout_says_its_commit() -> None:
    assert commit().removesuffix("+changes") in git("rev-parse", "HEAD")


def test_the_changelog_has_this_version() -> None:
    """The newest entry is of the version that is being built, or of what comes after it."""
    version = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    headings = re.findall(
        r"^## \[(.*?)\]", (ROOT / "docs" / "changelog.md").read_text(), re.MULTILINE
    )
    assert headings[0] == "Unreleased"
    assert version in headings


def test_the_images_lock_has_what_the_project_needs() -> None:
    lock = (ROOT / "deploy" / "requirements.lock").read_text()
    pinned = dict(re.findall(r"^([\w.-]+)==(\S+) \\$", lock, re.MULTILINE))
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    for line in [*project["dependencies"], *project["optional-dependencies"]["otel"]]:
        wanted = Requirement(line)
        assert canonicalize_name(wanted.name) in pinned, f"make the lock anew: {line}"
        assert wanted.specifier.contains(pinned[canonicalize_name(wanted.name)]), line
    assert lock.count("--hash=sha256:") >= len(pinned)


def test_licences_as_an_sbom_states_them() -> None:
    document = {
        "components": [
            {"name": "a", "version": "1", "licenses": [{"license": {"id": "MIT"}}]},
            {"name": "b", "version": "2", "licenses": [{"expression": "MIT OR Apache-2.0"}]},
            {"name": "c", "licenses": [{"license": {"name": "Long text\nof it"}}]},
            {"name": "d", "version": "4"},
        ]
    }
    assert list(sbom.licences(document)) == [
        ("a", "1", "MIT"),
        ("b", "2", "MIT OR Apache-2.0"),
        ("c", "", "Long text"),
        ("d", "4", "not stated"),
    ]


@pytest.mark.nightly
def test_an_sbom_of_this_environment(tmp_path: Path) -> None:
    pytest.importorskip("cyclonedx_py", reason="no cyclonedx-bom: pip install -e '.[release]'")
    sbom.write(sys.executable, tmp_path)
    rows = [line.split("\t") for line in (tmp_path / "licences.tsv").read_text().splitlines()]
    names = {name for name, _, _ in rows}
    assert {"torch", "starlette", "asyncpg", "msgspec"} <= names
