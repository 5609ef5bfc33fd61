/** Building blocks of the views. Text only ever becomes text: nothing here parses markup. */

import { copyText } from "../js/clipboard.js";
import { button as plainButton, element, LISTENERS, shape } from "../js/elements.js";

export { element, shape };

export function card(title, ...content) {
  return element("section", { class: "card", "aria-label": title }, element("h3", {}, title), ...content);
}

/**
 * Make these the children of `node` and leave alone what is there already: focus, a selection and
 * a press under way outlive figures that change every other second.
 *
 * @param {(string | Node)[]} children new ones, or some of `node`'s own in their old places
 */
export function redraw(node, ...children) {
  const fresh = children.map((child) => (typeof child === "string" ? new Text(child) : child));
  const old = [...node.childNodes];
  fresh.forEach((child, index) => {
    const there = old[index];
    if (there === undefined) node.append(child);
    else if (there !== child) bring(there, child);
  });
  for (const rest of old.slice(fresh.length)) rest.remove();
}

/** Bring a node up to date with its successor, or put that in its place when it is about another thing. */
function bring(there, fresh) {
  if (there.nodeType === Node.TEXT_NODE && fresh.nodeType === Node.TEXT_NODE) {
    if (there.data !== fresh.data) there.data = fresh.data;
  } else if (about(there) !== about(fresh)) {
    there.replaceWith(fresh);
  } else {
    for (const name of there.getAttributeNames()) if (!fresh.hasAttribute(name)) there.removeAttribute(name);
    for (const { name, value } of fresh.attributes) if (there.getAttribute(name) !== value) there.setAttribute(name, value);
    for (const name of LISTENERS) there[name] = fresh[name];
    redraw(there, ...fresh.childNodes);
  }
}

/** What a node stands for: a row of another request is not the same row with other words. */
const about = (node) => JSON.stringify([node.nodeName, node.getAttribute?.("href"), { ...node.dataset }]);

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
  return plainButton(label, onclick, { class: `plain ${kind}`.trim() });
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

/**
 * Show what only this answer has.
 *
 * @param {string} what it is called: a key, a secret
 */
export function reveal(text, what) {
  const dialog = document.getElementById("secret-dialog");
  const field = document.getElementById("secret");
  const copy = document.getElementById("secret-copy");
  document.getElementById("secret-title").textContent = `The new ${what}`;
  field.setAttribute("aria-label", what);
  field.value = text;
  copy.textContent = "Copy";
  copy.onclick = async () => {
    copy.textContent = (await copyText(text)) ? "Copied" : "Select it and copy it yourself";
  };
  dialog.addEventListener("close", () => (field.value = ""), { once: true });
  dialog.showModal();
  field.select();
}

const numbers = new Intl.NumberFormat("en");
const compact = new Intl.NumberFormat("en", { notation: "compact", maximumFractionDigits: 1 });
const times = new Intl.DateTimeFormat("en-CA", { dateStyle: "short", timeStyle: "short", hour12: false });

export const count = (value) => numbers.format(value);
export const rough = (value) => compact.format(value);
export const time = (seconds) => (seconds === null ? "" : times.format(seconds * 1000));

/** Do it, and show in `said` what was wrong, if anything. */
export async function attempted(said, work) {
  said.textContent = "";
  delete said.dataset.kind;
  try {
    await work();
  } catch (error) {
    said.dataset.kind = "error";
    said.textContent = error.message;
  }
}
