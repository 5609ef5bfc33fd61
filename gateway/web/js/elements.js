/** What the scripts of both pages build nodes and keep values with. Text only ever becomes text. */

const SVG = "http://www.w3.org/2000/svg";

export const LISTENERS = ["onchange", "onclick", "onpointerenter", "onpointerleave", "onsubmit"];

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
    if (LISTENERS.includes(name)) node[name] = value;
    else node.setAttribute(name, value === true ? "" : value);
  }
  node.append(...children.flat().filter((child) => child !== null && child !== undefined));
  return node;
}

export function button(text, onclick, props = {}) {
  return element("button", { type: "button", onclick, ...props }, text);
}

/** Hand the reader a file. */
export function download(name, type, text) {
  const link = element("a", { download: name, href: URL.createObjectURL(new Blob([text], { type })) });
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 1000);
}

/** What `store` has put there; null if there is nothing of that kind. */
export function stored(name, storage = sessionStorage) {
  try {
    return JSON.parse(storage.getItem(name));
  } catch {
    return null;
  }
}

/** Full or blocked storage costs the memory over a reload, and nothing else. */
export function store(name, value, storage = sessionStorage) {
  try {
    storage.setItem(name, JSON.stringify(value));
  } catch {
    // It lasts as long as the page.
  }
}
