/**
 * Who the reader is: signed in with an API key, from the address's fragment or typed, or at a provider.
 * Either way the server keeps a cookie in the browser that no script can read, for all tabs.
 */
import { store, stored } from "./elements.js";

export class ApiKey {
  #dialog = document.getElementById("key-dialog");
  #input = document.getElementById("key-input");
  #error = document.getElementById("key-error");
  #signIn = document.getElementById("sign-in");
  #page = location.pathname;
  #otherTabs = new BroadcastChannel(`sluice.sign-in ${location.pathname}`);
  #onKey;
  #name = null; // of who has signed in
  #isKept = false; // whether the server keeps what is said
  #id = null; // what the server calls them
  #scopes = [];

  /** @param {(isKept: boolean) => void} onKey called whenever somebody has signed in */
  constructor(onKey) {
    this.#onKey = onKey;
    document.getElementById("key-form").addEventListener("submit", (event) => {
      event.preventDefault(); // The dialog stays until the server has taken the key.
      const key = this.#input.value.trim();
      if (key) this.#use(key);
    });
    document.getElementById("key-cancel").addEventListener("click", () => this.#dialog.close());
    this.#dialog.addEventListener("close", () => (this.#input.value = ""));
    this.#signIn.addEventListener("click", () => this.#changeSignIn());
    this.#otherTabs.addEventListener("message", ({ data }) => {
      if (data === "signed out") forget();
      else this.start();
    });
    addEventListener("hashchange", () => this.#takeFromAddress());
  }

  /** Use the key or the sign-in that is at hand, or ask for one. */
  async start() {
    if (this.#takeFromAddress()) return;
    if (await this.check()) {
      if (this.#dialog.open) this.#dialog.close();
      this.#begin();
    }
  }

  /** Whether somebody has signed in, as far as the server can be asked; else a key is asked for. */
  async check() {
    const path = `/auth/session?page=${encodeURIComponent(this.#page)}`;
    const response = await fetch(path, { cache: "no-store" }).catch(() => null);
    const found = response?.ok ? await response.json().catch(() => null) : null;
    if (!found) return true; // The server is away; once it is back it says who this is.
    const hadSignedIn = this.known;
    this.#isSignedIn(found);
    if (!this.known) this.ask(hadSignedIn ? "The sign-in has ended." : "");
    return this.known;
  }

  get known() {
    return this.#name !== null;
  }

  /** @param {string} [error] why the last key was no good */
  ask(error = "") {
    this.#error.textContent = error;
    this.#error.hidden = !error;
    if (!this.#dialog.open) this.#dialog.showModal();
    this.#input.focus();
  }

  /** What they may do; empty while the server has not said so. */
  get scopes() {
    return this.#scopes;
  }

  /** What this tab has belongs to who wrote it: another one begins with an empty page. */
  #begin() {
    if (this.#id !== null) {
      const owner = `sluice.owner ${this.#page}`;
      const earlier = stored(owner);
      if (earlier !== null && earlier !== this.#id) return forget();
      store(owner, this.#id);
    }
    this.#onKey(this.#isKept);
  }

  #isSignedIn({ name, id, scopes = [], keeps_conversations: isKept = false, is_offered: isOffered }) {
    this.#name = name;
    this.#id = id ?? null;
    this.#scopes = scopes;
    this.#isKept = isKept;
    this.#signIn.textContent = this.known ? `Sign out ${name}` : "Sign in";
    this.#signIn.hidden = !this.known && !isOffered;
  }

  async #changeSignIn() {
    if (this.known) {
      await fetch("/auth/sign-out", { method: "POST", headers: { "x-sluice-csrf": "1" } });
      this.#otherTabs.postMessage("signed out");
      forget();
    } else location.assign(`/auth/sign-in?page=${encodeURIComponent(this.#page)}`);
  }

  /** `#key=…` never reaches a server, and leaves the address bar and the history at once. */
  #takeFromAddress() {
    const key = new URLSearchParams(location.hash.slice(1)).get("key");
    if (!key) return false;
    history.replaceState(null, "", location.pathname + location.search);
    this.#use(key);
    return true;
  }

  async #use(key) {
    const response = await fetch(`/auth/session?page=${encodeURIComponent(this.#page)}`, {
      method: "POST",
      headers: { "content-type": "application/json", "x-sluice-csrf": "1" },
      body: JSON.stringify({ api_key: key }),
    }).catch(() => null);
    const answer = await response?.json().catch(() => null);
    if (!response?.ok) {
      this.ask(answer?.error?.message ?? "The server does not answer.");
      if (!response) this.#input.value = key; // It may be good.
      return;
    }
    this.#isSignedIn(answer);
    if (this.#dialog.open) this.#dialog.close();
    this.#otherTabs.postMessage("signed in");
    this.#begin();
  }
}

/** The next one at this tab shall not see what the last one wrote. */
function forget() {
  dispatchEvent(new Event("signed-out"));
  sessionStorage.clear();
  history.replaceState(null, "", location.pathname + location.search); // It may name a conversation.
  location.reload();
}
