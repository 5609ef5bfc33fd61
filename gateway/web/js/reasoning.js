/** What the model thinks before it answers: open while it does, folded away once it answers. */

export class Reasoning {
  element = document.createElement("details");
  #title = document.createElement("summary");
  #text = document.createElement("p");
  #ended = false;

  constructor() {
    this.element.className = "reasoning";
    this.element.hidden = true;
    this.element.open = true;
    this.element.append(this.#title, this.#text);
  }

  update(text, { ended }) {
    if (!text) return;
    this.element.hidden = false;
    this.#text.textContent = text;
    this.#title.textContent = ended ? "Thought" : "Thinking";
    // Only at that moment: later it is the reader's to open.
    if (ended && !this.#ended) this.element.open = false;
    this.#ended = ended;
  }
}
