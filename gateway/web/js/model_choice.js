/** Which model answers: its name, or a choice where the key may use several. */

import { store, stored } from "./elements.js";

const STORAGE_KEY = "sluice.model";

export class ModelChoice {
  #name;
  #select;
  #seeing = [];
  /** Called when another model may be the one that answers. */
  onChange = () => {};

  constructor(name, select) {
    this.#name = name;
    this.#select = select;
    select.addEventListener("change", () => {
      store(STORAGE_KEY, select.value);
      this.onChange();
    });
  }

  /** All models that may be asked. */
  get all() {
    return [...this.#select.options].map(({ value }) => value);
  }

  /** The model to ask; undefined leaves it to the server. */
  get chosen() {
    return this.#select.value || undefined;
  }

  /** Whether the model to ask sees pictures. */
  get sees() {
    return this.#seeing.includes(this.chosen);
  }

  /** @param {string[]} models the first is the one that answers unless another was chosen; `seeing` of them see pictures */
  show(models, seeing = []) {
    this.#seeing = seeing;
    const chosen = this.chosen ?? stored(STORAGE_KEY);
    this.#select.replaceChildren(...models.map((model) => new Option(model)));
    if (models.includes(chosen)) this.#select.value = chosen;
    this.#select.hidden = models.length < 2;
    this.#name.textContent = models[0] ?? "";
    this.#name.hidden = models.length !== 1;
    this.onChange();
  }
}
