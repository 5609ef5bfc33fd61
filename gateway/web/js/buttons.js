/** Buttons with a text. */
import { copyText } from "./clipboard.js";

const COPIED_MS = 1600;

export function button(text, onClick) {
  const node = document.createElement("button");
  node.type = "button";
  node.textContent = text;
  node.addEventListener("click", onClick);
  return node;
}

export function copyButton(content) {
  const node = button("Copy", async () => {
    node.textContent = (await copyText(content)) ? "Copied" : "Press Ctrl+C";
    setTimeout(() => (node.textContent = "Copy"), COPIED_MS);
  });
  return node;
}
