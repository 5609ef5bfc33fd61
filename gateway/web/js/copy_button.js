/** The button that copies a text. */
import { copyText } from "./clipboard.js";
import { button } from "./elements.js";

const COPIED_MS = 1600;

export function copyButton(content) {
  const node = button("Copy", async () => {
    node.textContent = (await copyText(content)) ? "Copied" : "Press Ctrl+C";
    setTimeout(() => (node.textContent = "Copy"), COPIED_MS);
  });
  return node;
}
