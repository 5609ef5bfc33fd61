/** A block of code with its language and a copy button. */
import { copyText } from "./clipboard.js";
import { highlight } from "./highlight.js";

const COPIED_MS = 1600;

export function codeBlock(text, language) {
  const code = document.createElement("code");
  code.append(...highlight(text, language));
  const pre = document.createElement("pre");
  pre.tabIndex = 0; // a wide block scrolls; the keyboard must reach it
  pre.append(code);

  const label = document.createElement("span");
  label.textContent = language || "text";
  const button = document.createElement("button");
  button.type = "button";
  button.textContent = "Copy";
  button.addEventListener("click", async () => {
    button.textContent = (await copyText(text)) ? "Copied" : "Press Ctrl+C";
    setTimeout(() => (button.textContent = "Copy"), COPIED_MS);
  });

  const bar = document.createElement("div");
  bar.className = "code-bar";
  bar.append(label, button);
  const block = document.createElement("div");
  block.className = "code-block";
  block.append(bar, pre);
  return block;
}
