/** Which model answers: its name, or a choice where the key may use several. */

const STORAGE_KEY = "sluice.model";

export class ModelChoice {
  #name;
  #select;

  constructor(name, select) {
    this.#name = name;
    this.#select = select;
    select.addEventListener("change", () => {
      try {
        sessionStorage.setItem(STORAGE_KEY, select.value);
      } catch {
        // Storage is blocked: the choice lasts as long as the page.
      }
    });
  }

  /** The model to ask; undefined leaves it to the server. */
  get chosen() {
    return this.#select.value || undefined;
  }

  /** @param {string[]} models the first is the one that answers unless another was chosen */
  show(models) {
    const chosen = this.chosen ?? stored();
    this.#select.replaceChildren(...models.map((model) => new Option(model)));
    if (models.includes(chosen)) this.#select.value = chosen;
    this.#select.hidden = models.length < 2;
    this.#name.textContent = models[0] ?? "";
    this.#name.hidden = models.length !== 1;
  }
}

function stored() {
  try {
    return sessionStorage.getItem(STORAGE_KEY);
  } catch {
    return null;
  }
}
