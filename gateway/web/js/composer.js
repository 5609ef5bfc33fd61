/** The message field with its two gates: send and stop. */

const DRAFT = "sluice.draft";

export class Composer {
  #form = document.getElementById("composer");
  #field = document.getElementById("prompt");
  #send = document.getElementById("send");
  #stop = document.getElementById("stop");
  #busy = false;

  /** @param {{onSend: (text: string) => void, onStop: () => void}} actions */
  constructor({ onSend, onStop }) {
    this.#form.addEventListener("submit", (event) => {
      event.preventDefault();
      const text = this.#field.value.trim();
      if (!text || this.#busy) return;
      this.#field.value = "";
      this.#changed();
      onSend(text);
    });
    this.#field.addEventListener("keydown", (event) => {
      // During composition Enter picks a candidate of the input method.
      if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
      event.preventDefault();
      this.#form.requestSubmit();
    });
    this.#field.addEventListener("input", () => this.#changed());
    this.#stop.addEventListener("click", onStop);
    addEventListener("keydown", (event) => {
      if (event.key === "Escape" && this.#busy && !document.querySelector("dialog[open]")) onStop();
    });
    this.#field.value = sessionStorage.getItem(DRAFT) ?? "";
    this.#fit();
  }

  /** While an answer flows the send gate is a stop gate; focus stays where it was put. */
  setBusy(busy) {
    const hadFocus = [this.#send, this.#stop].includes(document.activeElement);
    this.#busy = busy;
    this.#send.hidden = busy;
    this.#stop.hidden = !busy;
    if (hadFocus) (busy ? this.#stop : this.#field).focus();
    document.documentElement.dataset.flow = busy ? "open" : "shut";
  }

  focus() {
    this.#field.focus();
  }

  /** Put a text into the field, before what is there already. */
  edit(text) {
    this.#field.value = [text, this.#field.value].filter(Boolean).join("\n\n");
    this.#changed();
    this.focus();
  }

  /** What is written and not sent outlasts a reload. */
  #changed() {
    this.#fit();
    try {
      sessionStorage.setItem(DRAFT, this.#field.value);
    } catch {
      // Storage is full or blocked: the draft lasts as long as the page.
    }
  }

  #fit() {
    this.#send.disabled = !this.#field.value.trim();
    this.#field.style.height = "auto";
    this.#field.style.height = `${this.#field.scrollHeight}px`;
  }
}
