/** Keys for what the page's buttons do; the dialog `help-dialog` lists them. */

const byId = (id) => document.getElementById(id);
const WITH_ALT = { KeyN: "new-chat", KeyK: "library-toggle", KeyS: "settings" };

export function installShortcuts() {
  addEventListener("keydown", (event) => {
    if (event.isComposing || event.ctrlKey || event.metaKey || document.querySelector("dialog[open]")) return;
    if (event.altKey) {
      // By the key's place: with Alt, some keyboards write other letters.
      const id = WITH_ALT[event.code];
      if (!id) return;
      event.preventDefault();
      byId(id).click();
      return;
    }
    if (event.target.closest?.("input, textarea, select, [contenteditable]")) return;
    if (event.key === "?") byId("help-dialog").showModal();
    else if (event.key === "/") byId("prompt").focus();
    else return;
    event.preventDefault();
  });
}
