/**
 * Markdown to DOM, safe by construction and cheap while text streams in.
 *
 * The vendored parser only yields tokens. Every node is made with createElement and textContent,
 * so nothing a model writes can become markup, a handler or a request: raw HTML shows as text,
 * links leave only over http(s), images become links, formulas MathML (`math.js`).
 */
import { Lexer } from "../vendor/marked.esm.js";
import { codeBlock } from "./code_block.js";
import { formula, MATH_SYNTAX } from "./math.js";
import { closeOpenMarks } from "./open_marks.js";

const OPTIONS = { gfm: true, breaks: true, extensions: MATH_SYNTAX };

export class MarkdownView {
  #root;
  #blocks = []; // [{raw, node}], one per rendered top-level block, in document order

  /** @param {HTMLElement} root filled by this view alone */
  constructor(root) {
    this.#root = root;
  }

  /** Show text that may still grow: only blocks that changed are built again. */
  update(text) {
    this.#render(lex(closeOpenMarks(text)), this.#blocks);
  }

  /** Show the finished text, built afresh: a late link definition may change an earlier block. */
  finish(text) {
    this.#render(lex(text), []);
  }

  #render(tokens, known) {
    const wanted = tokens.filter((token) => token.type in BLOCKS);
    let kept = 0;
    while (kept < known.length && known[kept].raw === wanted[kept]?.raw) kept += 1;
    const blocks = known.slice(0, kept);
    for (const token of wanted.slice(kept)) blocks.push({ raw: token.raw, node: block(token) });
    this.#root.replaceChildren(...blocks.map(({ node }) => node));
    this.#blocks = blocks;
  }
}

function lex(text) {
  try {
    return Lexer.lex(text, OPTIONS);
  } catch (error) {
    // Absurdly deep nesting exhausts the parser's stack; the words still matter.
    if (!(error instanceof RangeError)) throw error;
    return [{ type: "paragraph", raw: text, tokens: [{ type: "text", text }] }];
  }
}

function element(name, children, attributes = {}) {
  const node = document.createElement(name);
  node.append(...children);
  for (const [key, value] of Object.entries(attributes)) node.setAttribute(key, value);
  return node;
}

const BLOCKS = {
  // Headings start at h3: h1 is the page's, h2 the message's.
  heading: (token) => element(`h${Math.min(token.depth + 2, 6)}`, inlines(token.tokens)),
  paragraph: (token) => element("p", inlines(token.tokens)),
  code: (token) => codeBlock(token.text, (token.lang ?? "").split(/\s/)[0]),
  blockquote: (token) => element("blockquote", blocks(token.tokens)),
  list: (token) => list(token),
  table: (token) => table(token),
  hr: () => element("hr", []),
  html: (token) => element("p", [token.text.trimEnd()], { class: "literal" }),
  // Inside a tight list item the text is a block token with inline children.
  text: (token) => element("span", token.tokens ? inlines(token.tokens) : [decode(token)]),
  checkbox: (token) => checkbox(token),
  mathBlock: formula,
};

const block = (token) => BLOCKS[token.type](token);
const blocks = (tokens) => tokens.filter((token) => token.type in BLOCKS).map(block);

function list(token) {
  const items = token.items.map((item) =>
    element("li", blocks(item.tokens), item.task ? { class: "task" } : {}),
  );
  const start = token.ordered && token.start !== 1 ? { start: String(token.start) } : {};
  return element(token.ordered ? "ol" : "ul", items, start);
}

function table(token) {
  const row = (cells) =>
    element("tr", cells.map((cell) => {
      const align = cell.align ? { class: `align-${cell.align}` } : {};
      const scope = cell.header ? { scope: "col" } : {};
      return element(cell.header ? "th" : "td", inlines(cell.tokens), { ...align, ...scope });
    }));
  const grid = element("table", [
    element("thead", [row(token.header)]),
    element("tbody", token.rows.map(row)),
  ]);
  // A wide table scrolls by itself, reachable by keyboard, instead of widening the page.
  return element("div", [grid], { class: "table-scroll", tabindex: "0" });
}

const INLINES = {
  text: (token) => (token.tokens ? element("span", inlines(token.tokens)) : decode(token)),
  escape: (token) => token.text,
  html: (token) => token.raw,
  strong: (token) => element("strong", inlines(token.tokens)),
  em: (token) => element("em", inlines(token.tokens)),
  del: (token) => element("del", inlines(token.tokens)),
  codespan: (token) => element("code", [token.text]),
  br: () => element("br", []),
  link: (token) => link(token.href, inlines(token.tokens)),
  image: (token) => link(token.href, [token.text || token.href]),
  checkbox: (token) => checkbox(token),
  math: formula,
};

const inlines = (tokens) =>
  tokens.map((token) => (token.type in INLINES ? INLINES[token.type](token) : token.raw));

function checkbox(token) {
  const box = element("input", [], {
    type: "checkbox",
    disabled: "",
    "aria-label": token.checked ? "Done" : "To do",
  });
  box.checked = token.checked;
  return box;
}

function link(href, children) {
  if (!/^https?:\/\//i.test(href) || !URL.canParse(href)) return element("span", children);
  return element("a", children, { href, target: "_blank", rel: "noopener noreferrer" });
}

const ENTITY = /&(?:#\d{1,7}|#x[\da-f]{1,6}|[a-z][\da-z]{1,31});/gi;
const entityParser = new DOMParser();

/** A text token's characters; the parser leaves entities to the renderer. */
function decode(token) {
  return token.text.replace(
    ENTITY,
    (entity) => entityParser.parseFromString(entity, "text/html").documentElement.textContent,
  );
}
