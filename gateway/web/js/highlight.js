/**
 * Code in colours: comments, strings, numbers and keywords, of the languages that models write most.
 * It makes text nodes and spans of the code and nothing else, so that code can never become markup.
 */

const C_LIKE =
  "abstract as async await bool boolean break case catch char class const continue default defer delete do double else enum " +
  "export extends extern false final finally float fn for from func function go if impl implements import in instanceof int " +
  "interface let long match mod mut namespace new nil null override package private protected public pub return self short " +
  "static string struct super switch this throw throws trait true try type typeof undefined use using var void where while yield";
const PYTHON =
  "False None True and as assert async await break class continue def del elif else except finally for from global if import in " +
  "is lambda match nonlocal not or pass raise return self try while with yield";
const SHELL = "case do done elif else esac export fi for function if in local return set then until while";
const SQL =
  "and as asc begin by case commit create cross delete desc distinct drop else end exists from group having in inner insert into " +
  "is join key left like limit not null on or order outer primary references returning right rollback select set table then " +
  "union unique update using values view when where with";

const HASH = String.raw`#[^\n]*`;
const SLASHES = String.raw`\/\/[^\n]*|\/\*[\s\S]*?(?:\*\/|$)`;
const QUOTED = String.raw`"(?:\\.|[^"\\\n])*"?|'(?:\\.|[^'\\\n])*'?`;
const NUMBER = String.raw`\b(?:0[xX][\da-fA-F_]+|\d[\d_]*(?:\.\d+)?(?:[eE][+-]?\d+)?)\b`;

const C = language(SLASHES, `${QUOTED}|\`(?:\\\\.|[^\`\\\\])*\`?`, C_LIKE);
const PY = language(HASH, String.raw`"""[\s\S]*?(?:"""|$)|'''[\s\S]*?(?:'''|$)|${QUOTED}`, PYTHON);
const SH = language(String.raw`(?<=^|\s)#[^\n]*`, QUOTED, SHELL);
const DATA = language(`${HASH}|${SLASHES}`, QUOTED, "false null true");
const LANGUAGES = {
  python: PY, py: PY, python3: PY,
  bash: SH, sh: SH, shell: SH, zsh: SH, console: SH, dockerfile: SH,
  sql: language(String.raw`--[^\n]*|\/\*[\s\S]*?(?:\*\/|$)`, QUOTED, SQL, "gi"),
  json: DATA, yaml: DATA, yml: DATA, toml: DATA, ini: DATA,
  html: language("<!--[\\s\\S]*?(?:-->|$)", `${QUOTED}|<\\/?[\\w:-]+|\\/?>`, ""),
};
LANGUAGES.xml = LANGUAGES.svg = LANGUAGES.html;
for (const name of "c c++ cpp cs csharp css cuda dart go h hpp java javascript js jsx kotlin php rust rs scala scss swift ts tsx typescript zig".split(" ")) {
  LANGUAGES[name] = C;
}

function language(comments, strings, keywords, flags = "g") {
  const words = keywords ? `|(?<keyword>\\b(?:${keywords.split(" ").join("|")})\\b)` : "";
  return new RegExp(`(?<comment>${comments})|(?<string>${strings})|(?<number>${NUMBER})${words}`, `${flags}m`);
}

/** The nodes of a piece of code. A language that is not known stays one text. */
export function highlight(text, name) {
  const pattern = Object.hasOwn(LANGUAGES, name.toLowerCase()) ? LANGUAGES[name.toLowerCase()] : null;
  if (!pattern) return [text];
  const nodes = [];
  let end = 0;
  for (const match of text.matchAll(pattern)) {
    const [kind] = Object.entries(match.groups).find(([, value]) => value !== undefined);
    const span = document.createElement("span");
    span.className = `code-${kind}`;
    span.textContent = match[0];
    nodes.push(text.slice(end, match.index), span);
    end = match.index + match[0].length;
  }
  return [...nodes, text.slice(end)];
}
