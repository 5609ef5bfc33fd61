"""Formulas on the chat page: what is one, what it becomes, and that it stays inert."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from playwright.sync_api import expect

from tests.gateway.web.conftest import OpenPage
from tests.gateway.web.test_markdown import RENDER, STREAM, render_page

if TYPE_CHECKING:
    from playwright.sync_api import Page

    from tests.gateway.web.scripted_server import ScriptedServer

__all__ = ["render_page"]

pytestmark = pytest.mark.browser

LOADED = "() => import('/vendor/temml.esm.js').then(() => null)"
MATHML = "http://www.w3.org/1998/Math/MathML"


@pytest.fixture
def math_page(render_page: Page) -> Page:
    """The page with the library loaded, so that a formula is there at once."""
    render_page.evaluate(LOADED)
    render_page.evaluate(RENDER, "$x$")
    render_page.wait_for_selector("#sample math")
    return render_page


def shown(page: Page, markdown: str) -> list[str]:
    """The kind and the text of every formula."""
    page.evaluate(RENDER, markdown)
    formulas = page.evaluate(
        """() => [...document.querySelectorAll("#sample .math")].map(
          (node) => [node.className, node.querySelector("math") ? "" : "?", node.textContent])"""
    )
    return [f"{kind} {unknown}{text}" for kind, unknown, text in formulas]


@pytest.mark.parametrize(
    ("markdown", "formulas"),
    [
        (r"Let \(a_1 * b_2 * c\) be", ["math a1∗b2∗c"]),
        ("Let $a_1$ and $b_2$ be", ["math a1", "math b2"]),
        ("\\[ e^{i\\pi} = -1 \\]", ["math displayed eiπ=−1"]),
        ("So:\n$$\nx = 1\n$$\nand", ["math displayed x=1"]),
        ("\\[\nx\n= 1\n\\]\n\n# Title", ["math displayed x=1"]),
        ("- one: $$x$$ two", ["math displayed x"]),
        ("\\[ x \\] and \\[\ny\n\\], too", ["math displayed x", "math displayed y"]),
        ("| a |\n|---|\n| $x$ |", ["math x"]),
        ("**so $x$**", ["math x"]),
        ("Solve $\\frac{1}{", []),
        ("It is $5 and $6, $7-$8, US$5 or C$7.", []),
        ("`$x$` and\n\n```\n$x$ \\(y\\)\n```", []),
        ("a \\$x$ b $ c", []),
        ("$$", []),
        ("\\(\\)", []),
    ],
)
def test_formulas_are_told_from_text(math_page: Page, markdown: str, formulas: list[str]) -> None:
    assert shown(math_page, markdown) == formulas


def test_mathml_is_made_of_tex(math_page: Page) -> None:
    math_page.evaluate(RENDER, r"\[ \frac{-b \pm \sqrt{b^2 - 4ac}}{2a} \]")
    names = math_page.evaluate(
        "() => [...document.querySelectorAll('#sample math *')].map((node) => node.localName)"
    )
    assert {"mfrac", "msqrt", "msup"} <= set(names)


def test_the_librarys_styles_apply(math_page: Page) -> None:
    math_page.evaluate(RENDER, r"\[ \begin{aligned} a &= b \\ &= \boxed{c} \end{aligned} \]")
    cell = math_page.locator("#sample .tml-left").first
    expect(cell).to_have_css("text-align", "-webkit-left")
    expect(math_page.locator("#sample [style*=border]")).to_have_css("border-top-style", "solid")


def test_what_the_library_writes_as_style_attributes_applies_too(math_page: Page) -> None:
    """The fixture fails on anything that the page's policy refuses."""
    math_page.evaluate(RENDER, r"\[ \pmb{x} \sideset{_a^b}{_c^d}\prod \]")
    expect(math_page.locator("#sample mstyle[style*=bold]")).to_have_css("font-weight", "700")
    left = math_page.locator("#sample [style*='text-align: left']")
    expect(left).to_have_count(2)
    expect(left.first).to_have_css("text-align", "left")


def test_what_is_no_tex_stays_its_source(math_page: Page) -> None:
    assert shown(math_page, r"\(\nosuchcommand{x}\)") == [r"math ?\nosuchcommand{x}"]


def test_a_formula_that_streams_is_not_taken_for_markdown(math_page: Page) -> None:
    pieces = ["So\n\n\\[ ", "a * b\n", "= c * d\n", "\\]\n", "\nand *on*."]
    states, html = math_page.evaluate(STREAM, pieces)
    assert states[1:4] == ["Soa∗b", "Soa∗b=c∗d", "Soa∗b=c∗d"]
    assert "<em>on</em>" in html
    assert html.count("<math") == 1


@pytest.mark.parametrize(
    "tex",
    [
        r"\href{javascript:alert(1)}{x}",
        r"\href{https://evil.example}{x}",
        r"\url{https://evil.example}",
        r"\includegraphics{https://evil.example/p.png}",
        r"\style{background:url(https://evil.example/p.png)}{x}",
        r"\class{composer}{x} \id{prompt}{x} \data{x=1}{x}",
        r"\text{<img src=x onerror=alert(1)>}",
        r"\def\x{\x\x}\x",
        r"\rule{9999em}{9999em}",
        r"\color{red;background:url(https://evil.example/p.png)} x",
    ],
)
def test_hostile_tex_stays_inert(math_page: Page, tex: str) -> None:
    """The fixture also fails on any dialog and on any request to another host."""
    math_page.evaluate(RENDER, f"\\[{tex}\\]\n\n${tex}$")
    nodes = math_page.evaluate(
        """() => [...document.querySelectorAll("#sample math, #sample math *")].map((node) => [
          node.namespaceURI, node.id, node.hasAttribute("href") || node.hasAttribute("src"),
          [...node.attributes].some(({name}) => name.startsWith("on")),
          getComputedStyle(node).backgroundImage])"""
    )
    assert all(node == [MATHML, "", False, False, "none"] for node in nodes)
    assert math_page.evaluate("document.querySelector('#sample').scrollHeight") < 2000


def test_a_long_derivation_is_typeset(math_page: Page) -> None:
    """The library counts its own macros, such as \\, and \\quad, as expansions."""
    lines = r"a &= b \, c \quad \implies \operatorname{d} \\ " * 60
    math_page.evaluate(RENDER, rf"\[ \begin{{aligned}} {lines} \end{{aligned}} \]")
    assert math_page.locator("#sample mtr").count() == 60


@pytest.mark.parametrize(
    "tex",
    [
        *(
            rf"\{definition}\a{{{'x' * 3000}}}" + r"\a " * 20
            for definition in ("def", "gdef", "edef", "xdef", "newcommand", "providecommand")
        ),
        "x + " * 50_000,
    ],
)
def test_what_would_take_long_stays_its_source(math_page: Page, tex: str) -> None:
    assert shown(math_page, rf"\[ {tex} \]") == [f"math displayed ?{tex.strip()}"]


def test_a_reader_at_the_end_stays_there_when_formulas_are_set(
    open_page: OpenPage, server: ScriptedServer
) -> None:
    page = open_page()
    server.say("A line.\n\n" * 40 + r"$$\begin{matrix}" + r"1 \\" * 12 + r"\end{matrix}$$")
    page.fill("#prompt", "Go")
    page.press("#prompt", "Enter")
    page.wait_for_selector(".turn:last-child[aria-busy=false]")
    page.locator("math mtr").last.wait_for()
    distance = (
        "(s => s.scrollHeight - s.scrollTop - s.clientHeight)(document.querySelector('main'))"
    )
    page.wait_for_function(f"{distance} < 2")


def test_openings_without_ends_do_not_take_long(math_page: Page) -> None:
    """As a page that streams renders at most once per frame."""
    for opening in ("\\(", "\\[", "$a", "$$"):
        text = f"{opening} word\n\n" * 2000 + f"{opening} " * 2000
        seconds = math_page.evaluate(
            f"async (text) => {{ const t = performance.now(); await ({RENDER})(text); "
            "return (performance.now() - t) / 1000; }",
            text,
        )
        assert seconds < 5, opening


def test_the_library_comes_with_the_first_formula(
    open_page: OpenPage, server: ScriptedServer
) -> None:
    page = open_page()
    asked: list[str] = []
    page.on("request", lambda request: asked.append(request.url))
    for text, files in (("No formula for $5.", 0), ("One: $x^2$", 2), ("Two: $y^2$", 2)):
        server.say(text)
        page.fill("#prompt", "Go")
        page.press("#prompt", "Enter")
        page.wait_for_selector(".turn:last-child[aria-busy=false]")
        if files:
            page.locator(".turn").last.locator("math msup").wait_for()
        assert len([url for url in asked if "temml" in url]) == files
