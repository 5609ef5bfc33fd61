/**
 * The WebSocket to /v1/chat, kept alive: reconnects with growing pauses, notices a dead peer by its
 * missing pong. The cookie of the sign-in says who connects. The protocol is written down in gateway/schemas/ws.py.
 */

const FIRST_PAUSE_MS = 500;
const LONGEST_PAUSE_MS = 15_000;
const PING_EVERY_MS = 20_000;
const PONG_WITHIN_MS = 10_000;
const AUTHENTICATION_FAILED = 4401;
const MAY_NOT_CHAT = 4403;

/**
 * States: "idle" (no key yet), "connecting", "open" (ready received), "waiting" (a pause before the
 * next try) and "refused" (the key is no good; only a new one helps).
 */
export class ChatSocket {
  #url;
  #socket = null;
  #attempt = 0;
  #retry = null;
  #heartbeat = null;
  #refusal = null;
  state = "idle";
  mostBytes = Infinity; // of a message

  /** Called with (state, detail): the `ready` message, the pause in ms, or the refusal's words. */
  onState = () => {};
  /** Called with every message about turns. */
  onMessage = () => {};

  constructor(url) {
    this.#url = url;
    addEventListener("online", () => this.#hurry());
    document.addEventListener("visibilitychange", () => {
      if (document.visibilityState === "visible") this.#hurry();
    });
  }

  /** Connect as who has signed in, dropping any connection made as somebody else. */
  connect() {
    this.#attempt = 0;
    this.#drop();
    this.#open();
  }

  /** Send one message; false when there is no open connection to send it on. */
  send(message) {
    if (this.state !== "open") return false;
    this.#socket.send(JSON.stringify(message));
    return true;
  }

  /** Whether the server would not take this message. */
  isTooLong(message) {
    return new Blob([JSON.stringify(message)]).size > this.mostBytes;
  }

  #become(state, detail) {
    this.state = state;
    this.onState(state, detail);
  }

  #open() {
    clearTimeout(this.#retry);
    this.#refusal = null;
    this.#become("connecting");
    const socket = new WebSocket(this.#url);
    this.#socket = socket;
    // A socket that was replaced may still speak; only the current one is heard.
    const current = (handler) => (event) => socket === this.#socket && handler(event);
    socket.onmessage = current(({ data }) => this.#receive(JSON.parse(data)));
    socket.onclose = current(({ code }) => this.#closed(code));
  }

  #receive(message) {
    this.#expectPong(false);
    if (message.type === "ready") {
      this.#attempt = 0;
      this.#become("open", message);
      this.#beat();
    } else if (this.state === "open") {
      if (message.type !== "pong") this.onMessage(message);
    } else if (message.type === "error") {
      this.#refusal = message.error.message;
    }
  }

  #closed(code) {
    this.#drop();
    if (code === AUTHENTICATION_FAILED || code === MAY_NOT_CHAT) {
      this.#become("refused", this.#refusal ?? "The server refused this key.");
      return;
    }
    // Jitter, so that a thousand pages do not come back in the same instant.
    const ceiling = Math.min(FIRST_PAUSE_MS * 2 ** this.#attempt, LONGEST_PAUSE_MS);
    const pause = ceiling * (0.5 + Math.random() / 2);
    this.#attempt += 1;
    this.#retry = setTimeout(() => this.#open(), pause);
    this.#become("waiting", pause);
  }

  #drop() {
    clearTimeout(this.#retry);
    clearTimeout(this.#heartbeat);
    const socket = this.#socket;
    this.#socket = null;
    socket?.close();
  }

  /** The network or the reader came back: do not sit out the pause. */
  #hurry() {
    if (this.state === "waiting") this.#open();
  }

  #beat() {
    this.#heartbeat = setTimeout(() => {
      this.send({ type: "ping" });
      this.#expectPong(true);
    }, PING_EVERY_MS);
  }

  #expectPong(expected) {
    clearTimeout(this.#heartbeat);
    if (expected) this.#heartbeat = setTimeout(() => this.#closed(1006), PONG_WITHIN_MS);
    else if (this.state === "open") this.#beat();
  }
}
