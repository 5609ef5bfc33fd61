/** The message field with its two gates: send and stop. */
import { arePictures, Pictures } from "./pictures.js";

const DRAFT = "sluice.draft";
const MAX_FILE_BYTES = 200_000;

export class Composer {
  #form = document.getElementById("composer");
  #field = document.getElementById("prompt");
  #send = document.getElementById("send");
  #stop = document.getElementById("stop");
  #trouble = document.getElementById("composer-trouble");
  #busy = false;
  pictures = new Pictures(() => this.#fit(), (words) => this.#say(words));

  /** @param {{onSend: (text: string, pictures: string[]) => void, onStop: () => void}} actions */
  constructor({ onSend, onStop }) {
    this.#form.addEventListener("submit", (event) => {
      event.preventDefault();
      const text = this.#field.value.trim();
      const { urls } = this.pictures;
      if (!(text || urls.length) || this.#busy) return;
      this.#field.value = "";
      this.pictures.put([]);
      this.#changed();
      onSend(text, urls);
    });
    this.#field.addEventListener("keydown", (event) => {
      // During composition Enter picks a candidate of the input method.
      if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
      event.preventDefault();
      this.#form.requestSubmit();
    });
    this.#field.addEventListener("input", () => this.#changed());
    this.#field.addEventListener("paste", (event) => this.#pasted(event));
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

  /** Put a text into the field, before what is there already, and the pictures that went with it. */
  edit(text, pictures = []) {
    if (this.pictures.sees && pictures.length) this.pictures.put(pictures);
    this.#field.value = [text, this.#field.value].filter(Boolean).join("\n\n");
    this.#changed();
    this.focus();
  }

  /** Texts of files are put where one writes, pictures above it; nothing else can be sent. */
  async #pasted(event) {
    const files = [...event.clipboardData.files];
    if (!files.length) return;
    event.preventDefault();
    const pictures = arePictures(files);
    if (pictures.length && !this.pictures.sees) return this.#say("This model sees no pictures: write what is in it, or paste its text.");
    await this.pictures.take(pictures);
    for (const file of files) {
      if (pictures.includes(file)) continue;
      const text = file.size > MAX_FILE_BYTES ? null : await file.text();
      if (text === null || text.includes("\0")) {
        return this.#say(`${file.name} is no text of at most ${MAX_FILE_BYTES.toLocaleString("en")} bytes.`);
      }
      this.#field.setRangeText(`${file.name}:\n\`\`\`\n${text.trimEnd()}\n\`\`\`\n`, this.#field.selectionStart, this.#field.selectionEnd, "end");
      this.#changed();
    }
  }

  #say(words) {
    this.#trouble.textContent = words;
    this.#trouble.hidden = !words;
  }

  /** What is written and not sent outlasts a reload. */
  #changed() {
    this.#say("");
    this.#fit();
    try {
      sessionStorage.setItem(DRAFT, this.#field.value);
    } catch {
      // Storage is full or blocked: the draft lasts as long as the page.
    }
  }

  #fit() {
    this.#send.disabled = !this.#field.value.trim() && !this.pictures.urls.length;
    this.#field.style.height = "auto";
    this.#field.style.height = `${this.#field.scrollHeight}px`;
  }
}
