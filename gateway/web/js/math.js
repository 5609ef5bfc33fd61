/**
 * Formulas in TeX: found among the Markdown, shown as MathML.
 *
 * `\(…\)` and `$…$` stand in the line, `\[…\]` and `$$…$$` on lines of their own. The library that
 * understands TeX is loaded with the first formula; until then, and where it understands nothing,
 * a formula is its source. It makes nodes, never HTML, and is not trusted with links or styles, nor
 * with formulas that are very long or define macros.
 */

// As in pandoc, money is no formula: no blank inside of the signs, and no digit behind the last.
const IN_LINE = /^(?:\\\((.{1,2000}?)\\\)|\$(?![\s$])((?:\\.|[^\\$`\n])+?)(?<!\s)\$(?![\d$]))/s;
const DISPLAYED = /^(?:\\\[(.{1,2000}?)\\\]|\$\$([^$]+)\$\$)/s;
// What is open to the end still streams: its lines are no Markdown either.
const BLOCK =
  /^ {0,3}(?:\\\[((?:(?!\\\]).)+)(?:\\\][ \t]*(?=\n|$)|$)|\$\$([^$]+)(?:\$\$[ \t]*(?=\n|$)|$))\n*/s;
const BLOCK_START = /\n {0,3}(?:\\\[|\$\$)/;
const INLINE_START = /\\[([]|\$/;

/** What marked's lexer needs to know of formulas. */
export const MATH_SYNTAX = {
  block: [tokenizer("mathBlock", BLOCK, true)],
  startBlock: [(text) => start(paragraph(text), BLOCK_START, 1)],
  inline: [tokenizer("math", IN_LINE, false), tokenizer("math", DISPLAYED, true)],
  startInline: [(text) => start(text, INLINE_START, 0)],
};

function tokenizer(type, pattern, displayMode) {
  return (text) => {
    const match = pattern.exec(text);
    const source = match?.slice(1).find((group) => group !== undefined);
    return source?.trim() ? { type, raw: match[0], text: source.trim(), displayMode } : undefined;
  };
}

/** What a block can interrupt: marked asks with all the rest of the text, for each paragraph. */
function paragraph(text) {
  const end = text.indexOf("\n\n");
  return end < 0 ? text : text.slice(0, end);
}

function start(text, pattern, skip) {
  const place = text.search(pattern);
  return place < 0 ? undefined : place + skip;
}

const MAX_CHARS = 5_000;
// A macro can stand for any number of signs: with a few of them a short text takes minutes.
const DEFINITION = /\\(?:[gex]?def|(?:re)?newcommand|providecommand)(?![A-Za-z])/;

let temml = null;
let loading = null;

/** The node of a formula, from which comes a `grown` if it is set later. */
export function formula({ text, displayMode }) {
  const node = document.createElement("span");
  node.className = displayMode ? "math displayed" : "math";
  if (displayMode) node.tabIndex = 0; // a wide formula scrolls; the keyboard must reach it
  node.textContent = text;
  if (temml) typeset(node, text, displayMode);
  else {
    loading ??= load();
    loading.then(
      () => {
        typeset(node, text, displayMode);
        node.dispatchEvent(new Event("grown", { bubbles: true }));
      },
      () => (loading = null), // offline: the next formula tries again
    );
  }
  return node;
}

async function load() {
  const style = document.createElement("link");
  style.rel = "stylesheet";
  style.href = new URL("../vendor/temml.css", import.meta.url);
  document.head.append(style);
  await new Promise((resolve) => (style.onload = style.onerror = resolve));
  temml = (await import("../vendor/temml.esm.js")).default;
}

function typeset(node, text, displayMode) {
  if (text.length > MAX_CHARS || DEFINITION.test(text)) return;
  const options = { displayMode, throwOnError: true, trust: false, maxSize: [20, 20] };
  try {
    // What `temml.render` does, but for the attributes.
    const tree = temml.__renderToMathMLTree(text, options);
    restyle(tree);
    node.replaceChildren(tree.toNode());
  } catch {
    node.textContent = text;
  }
}

/** Turns style attributes, which the page's policy refuses, into styles that a script may set. */
function restyle(node) {
  const { style, ...attributes } = node.attributes ?? {};
  if (style) {
    node.attributes = attributes;
    node.style = { cssText: style, ...node.style };
  }
  node.children?.forEach(restyle);
}
