"""What the documents point to is there: links, anchors, files, tests, modules and commands."""

from __future__ import annotations

import importlib.util
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
import typer

from gateway.cli import app

ROOT = Path(__file__).parent.parent
DOCUMENTS = [
    ROOT / name
    for name in (
        "README.md",
        "CONTRIBUTING.md",
        "deploy/README.md",
        "PERFORMANCE.md",
        "docs/architecture.md",
        "docs/capacity.md",
        "docs/changelog.md",
        "docs/chat-page.md",
        "docs/clients.md",
        "docs/experiments.md",
        "docs/metrics.md",
        "docs/models.md",
        "docs/performance-gateway.md",
        "docs/scaling.md",
        "docs/sign-in.md",
        "docs/stability.md",
        "docs/webhooks.md",
        "engine/README.md",
        "engine/demo/README.md",
        "gateway/README.md",
        "grammar/README.md",
        "kernels/README.md",
        "tenants/README.md",
        "tests/README.md",
    )
]
PACKAGES = ("deploy", "engine", "gateway", "grammar", "kernels", "migrations", "tenants", "tests")

documents = pytest.mark.parametrize(
    "document", DOCUMENTS, ids=[str(path.relative_to(ROOT)) for path in DOCUMENTS]
)


def anchors(document: Path) -> set[str]:
    """Of its headings, as GitHub and GitLab make them."""
    headings = re.findall(r"^#+ (.*)$", document.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@documents
def test_links_lead_somewhere(document: Path) -> None:
    for target in re.findall(r"\]\(([^)\s]+)\)", document.read_text()):
        if re.match(r"https?://", target):
            continue
        path, _, anchor = target.partition("#")
        found = document.parent / path if path else document
        assert found.exists(), target
        if anchor:
            assert anchor in anchors(found), target


@pytest.fixture(scope="module")
def names() -> set[str]:
    """Of all files of the packages, without their folders."""
    return {path.name for package in PACKAGES for path in (ROOT / package).rglob("*.*")}


@documents
def test_files_that_are_named_exist(document: Path, names: set[str]) -> None:
    text = document.read_text()
    for path in re.findall(rf"(?<![\w./])(?:{'|'.join(PACKAGES)})/[\w./-]*\w", text):
        assert (ROOT / path).exists(), path
    for name in re.findall(r"`(\w+\.(?:py|sql|cu|cuh|cpp|jinja))`", text):
        assert name in names, name


@documents
def test_tests_that_are_named_exist(document: Path) -> None:
    """As pytest would be given them: ``path::test`` or ``path::Class``."""
    for path, name in re.findall(r"`([\w./]+\.py)::(\w+)`", document.read_text()):
        source = (ROOT / path).read_text()
        assert re.search(rf"^(async )?(def|class) {name}\b", source, re.MULTILINE), (
            f"{path}::{name}"
        )


def test_figures_of_a_gpu_are_in_the_page_that_says_how_they_were_measured() -> None:
    """The README has some of them, and they are renewed there."""
    _, _, of_gpu = (ROOT / "README.md").read_text().partition("\n**GPU.**")
    told = figures((ROOT / "PERFORMANCE.md").read_text())
    rows = body_rows(of_gpu)
    assert len(rows) > 10
    for row in rows:
        speeds = figures(row.partition("|")[2].partition("|")[2])
        assert speeds, row
        assert speeds <= told, row


def body_rows(text: str) -> list[str]:
    """Of all its tables, without their heads."""
    return re.findall(r"^(?!.*\n\|-)\|[^-].*$", text, re.MULTILINE)


def test_rows_of_two_tables() -> None:
    text = "| a | b |\n|---|---|\n| 1 | 2 |\n| - | 3 |\n\nText\n\n| c |\n|---|\n| 4 |"
    assert body_rows(text) == ["| 1 | 2 |", "| - | 3 |", "| 4 |"]


def figures(text: str) -> set[str]:
    return set(re.findall(r"(?<![\d.,])\d+(?:,\d{3})*(?:\.\d+)?(?![\d])", text))


def test_figures() -> None:
    assert figures("| 3,077; 37.5 ms | 1.19 × | 8.1–9") == {"3,077", "37.5", "1.19", "8.1", "9"}


@documents
def test_modules_that_are_to_be_run_exist(document: Path) -> None:
    for module in modules(document.read_text()):
        assert importlib.util.find_spec(module) is not None, module


def modules(text: str) -> Iterator[str]:
    """After ``python -m``, with ``{a,b}`` written out."""
    for written in re.findall(r"python3? -m ([\w.{},]+)", text):
        before, brace, rest = written.rstrip(".,").partition("{")
        names, _, after = rest.partition("}")
        yield from (f"{before}{name}{after}" for name in names.split(",")) if brace else (written,)


def test_braces_of_modules() -> None:
    assert list(modules("`python -m a.{b,c}_d`, `python -m e.f --x`")) == ["a.b_d", "a.c_d", "e.f"]


@documents
def test_commands_that_are_named_exist(document: Path) -> None:
    commands = typer.main.get_command(app).commands  # type: ignore[attr-defined]
    for names, sub in re.findall(
        r"(?:`|\$ )sluice ([a-z|\\]+)(?: ([a-z]+))?", document.read_text()
    ):
        for name in names.replace("\\", "").split("|"):
            assert name in commands, f"sluice {name}"
            if sub and (group := getattr(commands[name], "commands", None)):
                assert sub in group, f"sluice {name} {sub}"


def modules_by_folder(package: str) -> dict[str, set[str]]:
    """The modules that the map in a package's README names; of the package itself under ``""``."""
    text = (ROOT / package / "README.md").read_text()
    modules: dict[str, set[str]] = {}
    folder = ""
    for cells in re.findall(r"^\|(.*?)\|.*?\|(.*)\|$", text, re.MULTILINE):
        folder = cells[0].strip(" `") or folder
        named = modules.setdefault("" if folder == f"{package}/" else folder, set())
        named |= set(re.findall(r"`(\w+\.py)`", cells[1]))
    return modules


def test_the_engines_map_names_every_module() -> None:
    """But for the families of models, which are alike, and the demo, which has a README."""
    modules = modules_by_folder("engine")
    for path in (ROOT / "engine").rglob("*.py"):
        folder, _, name = str(path.relative_to(ROOT / "engine")).rpartition("/")
        if name in ("__init__.py", "__main__.py") or folder.startswith("demo"):
            continue
        if folder == "models" and not re.match("base|config|registry|llama|transformers", name):
            continue
        assert name in modules[f"{folder}/" if folder else ""], path


ALIKE = {"bench", "commands", "middleware", "parsers", "routes", "schemas"}
"""Packages of the gateway of which the map names some modules only."""


def test_the_gateways_map_names_every_module() -> None:
    modules = modules_by_folder("gateway")
    for path in (ROOT / "gateway").rglob("*.py"):
        folder = str(path.parent.relative_to(ROOT / "gateway")).strip(".")
        named = modules[f"{folder}/" if folder else ""]
        assert path.name in {*named, "__init__.py"} or folder in ALIKE, path
    for folder, named in modules.items():
        for name in named:
            assert (ROOT / "gateway" / folder / name).exists(), f"{folder}{name}"


NAMED_ONE_BY_ONE = {"backends/", "schema/"}
"""Folders whose modules are all named, because they differ."""


@pytest.mark.parametrize("package", ["tenants", "grammar"])
def test_maps_name_every_module(package: str) -> None:
    """By itself, or by a folder of modules that are alike, such as ``routes/``."""
    text = (ROOT / package / "README.md").read_text()
    section = text.partition("## The code\n")[2].partition("\n## ")[0]
    rows = "".join(line for line in section.splitlines() if line.startswith("|"))
    named = set(re.findall(r"`([\w/]+(?:\.py|/))`", rows)) - {f"{package}/"}
    for path in (ROOT / package).rglob("*.py"):
        folder = f"{path.parent.name}/"
        if path.name != "__init__.py" and folder not in named - NAMED_ONE_BY_ONE:
            assert path.name in named, path


def test_calls_of_a_streamed_token_exist() -> None:
    """The call stack in the gateway's README, line by line: class, method and file."""
    text = (ROOT / "gateway/README.md").read_text()
    calls = re.findall(r"^[│├└ ]*(\w+)\.(\w+) {2,}([\w/]+\.py)", text, re.MULTILINE)
    assert len(calls) > 5
    for class_name, method, name in calls:
        path = ROOT / name if (ROOT / name).exists() else ROOT / "gateway" / name
        _, _, after = path.read_text().partition(f"\nclass {class_name}")
        body = re.split(r"^(?=\S)", after.partition("\n")[2], maxsplit=1, flags=re.MULTILINE)[0]
        assert re.search(rf"^    (async )?def {method}\(", body, re.MULTILINE), (
            f"{method} in {name}"
        )
