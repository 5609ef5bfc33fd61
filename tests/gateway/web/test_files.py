"""What must hold of the page's files themselves, without a browser."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import gateway
from tenants.webhooks import EVENT_TYPES

WEB = Path(gateway.__file__).parent / "web"
PAGES = [WEB / "index.html", WEB / "admin/index.html"]
SCRIPTS = sorted([*WEB.glob("js/*.js"), *WEB.glob("admin/*.js")])
STYLES = sorted([*WEB.glob("css/*.css"), *WEB.glob("admin/*.css")])
OWN = [*SCRIPTS, *STYLES, *PAGES]


@pytest.mark.parametrize("path", OWN, ids=lambda path: f"{path.parent.name}/{path.name}")
def test_no_file_refers_to_another_host(path: Path) -> None:
    assert re.findall(r"https?://(?!www\.w3\.org/)[\w.]+", path.read_text()) == []


@pytest.mark.parametrize("path", SCRIPTS, ids=lambda path: f"{path.parent.name}/{path.name}")
def test_no_script_can_make_markup_of_text(path: Path) -> None:
    sinks = r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|eval\(|new Function|srcdoc"
    assert re.findall(sinks, path.read_text()) == []


def test_the_page_offers_every_event() -> None:
    script = (WEB / "admin/webhooks.js").read_text()
    listed = script.partition("EVENTS = [")[2].partition("];")[0]
    assert tuple(re.findall(r'"([^"]+)"', listed)) == EVENT_TYPES


@pytest.mark.parametrize("page", PAGES, ids=lambda path: path.parent.name)
def test_the_page_has_no_inline_script_or_style(page: Path) -> None:
    html = page.read_text()
    assert re.findall(r"\sstyle=|\son\w+=|<style|<script(?![^>]*src=)", html) == []


def test_every_button_of_an_icon_has_a_name_on_small_screens_too() -> None:
    """Their text is hidden there; the theme's names itself by what it would change to."""
    html = (WEB / "index.html").read_text()
    tools = re.findall(r'<button[^>]*class="tool[^>]*>', html)
    assert len(tools) == 5
    for tag in tools:
        assert "aria-label=" in tag or 'id="theme"' in tag
    assert "aria-label" in (WEB / "js" / "theme.js").read_text()


def test_every_file_the_page_names_exists() -> None:
    for page in PAGES:
        for name in re.findall(r'(?:href|src)="([^"#]+)"', page.read_text()):
            assert (page.parent / name).is_file()
    for path in STYLES:
        for name in re.findall(r'url\("([^"]+)"\)', path.read_text()):
            assert (path.parent / name).is_file()
    for path in SCRIPTS:
        for name in re.findall(r'from "([^"]+)"', path.read_text()):
            assert (path.parent / name).is_file()


def test_every_module_and_stylesheet_is_used() -> None:
    text = "".join(path.read_text() for path in OWN)
    for path in [*SCRIPTS, *STYLES]:
        assert path.name in text, f"{path.name} is dead"


def test_what_is_vendored_carries_its_version_and_licence() -> None:
    assert re.search(r"marked v\d+\.\d+\.\d+", (WEB / "vendor/marked.esm.js").read_text())
    temml = re.search(r"\| temml (\d+\.\d+\.\d+),", (WEB / "vendor/README.md").read_text())
    assert temml is not None
    assert f'"{temml[1]}"' in (WEB / "vendor/temml.esm.js").read_text()
    for name in ("marked", "temml"):
        assert "Permission is hereby granted" in (WEB / f"vendor/{name}.LICENSE").read_text()
    for path in WEB.glob("fonts/*.woff2"):
        family = path.name.split("-latin")[0]
        assert "SIL Open Font License" in (WEB / f"fonts/{family}.OFL").read_text()


def test_the_page_is_light() -> None:
    """All a first visit of the chat loads, fonts included, uncompressed."""
    loaded = [
        *WEB.glob("*.*"),
        *WEB.glob("css/*.css"),
        *WEB.glob("fonts/*.woff2"),
        *WEB.glob("js/*.js"),
        WEB / "vendor/marked.esm.js",  # Temml comes with the first formula.
    ]
    assert sum(path.stat().st_size for path in loaded) < 340_000


def test_our_own_scripts_are_few() -> None:
    assert sum(path.stat().st_size for path in SCRIPTS) <= 200_000
