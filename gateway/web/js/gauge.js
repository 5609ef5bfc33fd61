/** The staff gauge: tokens of context in use out of what the model can hold. */

export class Gauge {
  #root = document.getElementById("gauge");
  #full = this.#root.querySelector(".gauge-full");
  #reading = this.#root.querySelector(".gauge-reading");
  #capacity = null;
  #used = 0;

  setCapacity(tokens) {
    this.#capacity = tokens;
    this.#draw();
  }

  setUsed(tokens) {
    this.#used = tokens;
    this.#draw();
  }

  #draw() {
    this.#root.hidden = this.#capacity === null;
    if (this.#capacity === null) return;
    const level = Math.min(this.#used / this.#capacity, 1);
    this.#root.style.setProperty("--level", level.toFixed(4));
    this.#root.setAttribute("aria-valuemax", this.#capacity);
    this.#root.setAttribute("aria-valuenow", Math.min(this.#used, this.#capacity));
    this.#root.setAttribute("aria-valuetext", `${this.#used} of ${this.#capacity} tokens`);
    this.#full.textContent = `${this.#capacity.toLocaleString("en")} tokens`;
    this.#reading.textContent = this.#used ? this.#used.toLocaleString("en") : "";
  }
}
