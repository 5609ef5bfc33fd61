/** A block of code with its language and a copy button. */
import { copyButton } from "./copy_button.js";
import { highlight } from "./highlight.js";

export function codeBlock(text, language) {
  const code = document.createElement("code");
  code.append(...highlight(text, language));
  const pre = document.createElement("pre");
  pre.tabIndex = 0; // a wide block scrolls; the keyboard must reach it
  pre.append(code);

  const label = document.createElement("span");
  label.textContent = language || "text";

  const bar = document.createElement("div");
  bar.className = "code-bar";
  bar.append(label, copyButton(text));
  const block = document.createElement("div");
  block.className = "code-block";
  block.append(bar, pre);
  return block;
}
