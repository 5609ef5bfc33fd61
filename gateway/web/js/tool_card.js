/** A tool call as a small card: its name, and its arguments as they arrive; and a form for what tools answer. */
import { element } from "./elements.js";

export function toolCard({ function: { name, arguments: text } }) {
  const title = document.createElement("div");
  title.className = "card-title";
  const code = document.createElement("code");
  code.textContent = name;
  title.append("Calls", code);
  const card = document.createElement("div");
  card.className = "card";
  card.append(title, argumentsNode(text));
  return card;
}

function argumentsNode(text) {
  const fields = parseObject(text);
  if (!fields) {
    const pre = document.createElement("pre");
    pre.textContent = text;
    return pre;
  }
  const list = document.createElement("dl");
  for (const [key, value] of Object.entries(fields)) {
    const term = document.createElement("dt");
    term.textContent = key;
    const detail = document.createElement("dd");
    detail.textContent = typeof value === "string" ? value : JSON.stringify(value);
    list.append(term, detail);
  }
  return list;
}

/** The object in `text`, or null while it is incomplete or something else. */
function parseObject(text) {
  try {
    const value = JSON.parse(text);
    return value !== null && typeof value === "object" && !Array.isArray(value) ? value : null;
  } catch {
    return null;
  }
}

/** @param {(results: {id: string, content: string}[]) => void} onResults */
export function resultsForm(calls, onResults) {
  const fields = calls.map(({ id, function: { name } }) => ({ id, name, field: element("textarea", { rows: 2, dir: "auto", required: true }) }));
  const onsubmit = (event) => {
    event.preventDefault();
    onResults(fields.map(({ id, field }) => ({ id, content: field.value })));
  };
  const labels = fields.map(({ name, field }) => element("label", {}, `What ${name} answers`, field));
  return element("form", { class: "results", onsubmit }, labels, element("button", { type: "submit" }, "Give it to the model"));
}
