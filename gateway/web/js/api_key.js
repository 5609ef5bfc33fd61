/**
 * The API key of this tab: from the address's fragment, from the session, or from the reader. Or none,
 * if the reader has signed in: then a cookie that no script can read goes with each request.
 */

export class ApiKey {
  #dialog = document.getElementById("key-dialog");
  #input = document.getElementById("key-input");
  #error = document.getElementById("key-error");
  #signIn = document.getElementById("sign-in");
  #onKey;
  #storageKey;
  #hasSignedIn = false;

  /**
   * @param {(key: string | null) => void} onKey called whenever there is a key to use; null: a sign-in
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
    this.#signIn.addEventListener("click", () => this.#changeSignIn());
    addEventListener("hashchange", () => this.#takeFromAddress());
  }

  /** Use the key that is at hand, or ask for one. */
  start() {
    if (this.#takeFromAddress()) return;
    const stored = sessionStorage.getItem(this.#storageKey);
    if (stored) this.#onKey(stored);
    else this.#askServer();
  }

  /** Whether the reader has signed in, or could. */
  async #askServer() {
    const response = await fetch("/auth/session", { cache: "no-store" }).catch(() => null);
    const found = response?.ok ? await response.json().catch(() => null) : null;
    this.#signIn.hidden = !found?.is_offered;
    if (this.known) return; // One was given meanwhile.
    this.#hasSignedIn = Boolean(found?.name);
    if (!this.#hasSignedIn) return this.ask();
    this.#signIn.textContent = `Sign out ${found.name}`;
    this.#onKey(null);
  }

  async #changeSignIn() {
    if (this.#hasSignedIn) {
      await fetch("/auth/sign-out", { method: "POST", headers: { "x-sluice-csrf": "1" } });
      location.reload();
    } else location.assign(`/auth/sign-in?page=${encodeURIComponent(location.pathname)}`);
  }

  /** @param {string} [error] why the last key was no good */
  ask(error = "") {
    this.#error.textContent = error;
    this.#error.hidden = !error;
    if (error && this.#hasSignedIn) {
      this.#hasSignedIn = false; // It has ended.
      this.#signIn.textContent = "Sign in";
    }
    if (!this.#dialog.open) this.#dialog.showModal();
    this.#input.focus();
  }

  get known() {
    return this.#hasSignedIn || sessionStorage.getItem(this.#storageKey) !== null;
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
    this.#hasSignedIn = false;
    if (this.#dialog.open) this.#dialog.close();
    this.#onKey(key);
  }
}
