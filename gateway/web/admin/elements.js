/** Building blocks of the views. Text only ever becomes text: nothing here parses markup. */

const SVG = "http://www.w3.org/2000/svg";

/** @param {Record<string, unknown>} props attributes; `on…` are listeners, null is left out */
export function element(tag, props = {}, ...children) {
  return fill(document.createElement(tag), props, children);
}

export function shape(tag, props = {}, ...children) {
  return fill(document.createElementNS(SVG, tag), props, children);
}

function fill(node, props, children) {
  for (const [name, value] of Object.entries(props)) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
    else node.setAttribute(name, value === true ? "" : value);
  }
  node.append(...children.flat().filter((child) => child !== null && child !== undefined));
  return node;
}

export function card(title, ...content) {
  return element("section", { class: "card", "aria-label": title }, element("h3", {}, title), ...content);
}

/**
 * @param {(string | {title: string, number?: boolean})[]} columns
 * @param {{cells: (string | Node)[], props?: object}[]} rows
 * @param {string} empty what to say when there are none
 */
export function table(columns, rows, empty) {
  if (!rows.length) return element("p", { class: "empty" }, empty);
  const plain = columns.map((column) => (typeof column === "string" ? { title: column } : column));
  const type = (index) => (plain[index].number ? "number" : null);
  return element(
    "div",
    { class: "table-frame" },
    element(
      "table",
      {},
      element(
        "thead",
        {},
        element("tr", {}, plain.map((column, index) => element("th", { scope: "col", class: type(index) }, column.title))),
      ),
      element(
        "tbody",
        {},
        rows.map(({ cells, props = {} }) =>
          element("tr", props, cells.map((cell, index) => element("td", { class: type(index) }, cell))),
        ),
      ),
    ),
  );
}

export function button(label, onclick, kind = "") {
  return element("button", { type: "button", class: `plain ${kind}`.trim(), onclick }, label);
}

/** Asks before something that cannot be undone. */
export function confirmed(title, text, yes) {
  const dialog = document.getElementById("ask-dialog");
  document.getElementById("ask-title").textContent = title;
  document.getElementById("ask-text").textContent = text;
  document.getElementById("ask-yes").textContent = yes;
  dialog.returnValue = "no";
  dialog.showModal();
  return new Promise((resolve) => {
    dialog.addEventListener("close", () => resolve(dialog.returnValue === "yes"), { once: true });
  });
}

const numbers = new Intl.NumberFormat("en");
const compact = new Intl.NumberFormat("en", { notation: "compact", maximumFractionDigits: 1 });
const times = new Intl.DateTimeFormat("en-CA", { dateStyle: "short", timeStyle: "short", hour12: false });

export const count = (value) => numbers.format(value);
export const rough = (value) => compact.format(value);
export const time = (seconds) => (seconds === null ? "" : times.format(seconds * 1000));
