/** The API key of this tab: from the address's fragment, from the session, or from the reader. */

export class ApiKey {
  #dialog = document.getElementById("key-dialog");
  #input = document.getElementById("key-input");
  #error = document.getElementById("key-error");
  #onKey;
  #storageKey;

  /**
   * @param {(key: string) => void} onKey called whenever there is a key to use
   * @param {string} storageKey what it is called in this tab
   */
  constructor(onKey, storageKey = "sluice.key") {
    this.#onKey = onKey;
    this.#storageKey = storageKey;
    document.getElementById("key-form").addEventListener("submit", () => {
      const key = this.#input.value.trim();
      if (key) this.#use(key);
    });
    document.getElementById("key-cancel").addEventListener("click", () => this.#dialog.close());
    this.#dialog.addEventListener("close", () => (this.#input.value = ""));
    addEventListener("hashchange", () => this.#takeFromAddress());
  }

  /** Use the key that is at hand, or ask for one. */
  start() {
    if (this.#takeFromAddress()) return;
    const stored = sessionStorage.getItem(this.#storageKey);
    if (stored) this.#onKey(stored);
    else this.ask();
  }

  /** @param {string} [error] why the last key was no good */
  ask(error = "") {
    this.#error.textContent = error;
    this.#error.hidden = !error;
    if (!this.#dialog.open) this.#dialog.showModal();
    this.#input.focus();
  }

  get known() {
    return sessionStorage.getItem(this.#storageKey) !== null;
  }

  /** `#key=…` never reaches a server, and leaves the address bar and the history at once. */
  #takeFromAddress() {
    const key = new URLSearchParams(location.hash.slice(1)).get("key");
    if (!key) return false;
    history.replaceState(null, "", location.pathname + location.search);
    this.#use(key);
    return true;
  }

  #use(key) {
    sessionStorage.setItem(this.#storageKey, key);
    if (this.#dialog.open) this.#dialog.close();
    this.#onKey(key);
  }
}
