/** One question and its answer on the way: folds the server's messages into the answer. */

const REACH_WITHIN_MS = 10_000;
const RESUME_WITHIN_MS = 30_000; // the server's own patience, unless it is set otherwise
const DROPPED = "The connection dropped before the answer was finished.";

export class Turn {
  id = crypto.randomUUID?.() ?? `t${Date.now()}-${Math.random().toString(36).slice(2)}`;
  #socket;
  #question;
  #patience = null;
  #begun = 0;
  #sent = false;
  #streamId = null;
  #lastSeq = -1;
  #usedTokens = 0;

  /** Called after every change of `message`. */
  onChange = () => {};
  /** Called once, when the turn has ended. */
  onEnd = () => {};
  /** Called with the tokens of context in use. */
  onContext = () => {};

  /** @param question the fields of the request: messages, and model if one was chosen */
  constructor(socket, message, question) {
    this.#socket = socket;
    this.message = message;
    this.#question = question;
  }

  /** Ask now, or as soon as the connection is there; go on reading after it was lost. */
  begin() {
    if (this.ended) return;
    if (this.#sent) {
      const place = { stream_id: this.#streamId, last_seq: this.#lastSeq };
      this.#socket.send({ type: "resume", id: this.id, ...place });
      return;
    }
    const request = { type: "chat", id: this.id, resumable: true, ...this.#question };
    if (this.#socket.send(request)) {
      this.#sent = true;
      this.#begun = performance.now();
      clearTimeout(this.#patience);
    } else {
      const words = "The server cannot be reached. It may be restarting.";
      this.#patience ??= setTimeout(() => this.fail(words), REACH_WITHIN_MS);
    }
  }

  get ended() {
    return Boolean(this.message.finishReason || this.message.fault);
  }

  stop() {
    const told = this.#sent && this.#socket.send({ type: "cancel", id: this.id });
    if (!told) this.#end({ finishReason: "cancelled" });
  }

  /** Nobody will read on: the server need not write on, as it does after a lost connection. */
  leave() {
    if (this.#sent) this.#socket.send({ type: "cancel", id: this.id });
  }

  /** The connection is gone: what was already asked is read on once there is another. */
  disconnected() {
    if (!this.#sent) return;
    if (this.#streamId) this.#patience ??= setTimeout(() => this.fail(DROPPED), RESUME_WITHIN_MS);
    else this.fail(DROPPED);
  }

  fail(message, { retryable = true, code = null } = {}) {
    this.#end({ fault: { message, retryable, code } });
  }

  receive(event) {
    if (event.id !== this.id || this.ended) return;
    clearTimeout(this.#patience);
    this.#patience = null;
    this.#lastSeq = event.seq;
    this[`_${event.type}`]?.(event);
  }

  _started({ prompt_tokens: promptTokens, stream_id: streamId }) {
    this.#streamId = streamId;
    this.#usedTokens = promptTokens;
    this.onContext(promptTokens);
  }

  _delta({ content, reasoning_content: reasoning, tool_calls: toolCalls }) {
    if (reasoning) this.message.reasoning = (this.message.reasoning ?? "") + reasoning;
    if (content) this.message.content += content;
    for (const fragment of toolCalls ?? []) this.#addToolCall(fragment);
    this.onContext((this.#usedTokens += 1)); // at least; `done` brings the exact count
    this.onChange();
  }

  _done({ finish_reason: finishReason, usage }) {
    this.onContext(usage.total_tokens);
    this.#end({ finishReason, usage, seconds: (performance.now() - this.#begun) / 1000 });
  }

  _error({ error, retryable, status }) {
    const isLost = this.#streamId && (status === 404 || status === 410); // not kept any more
    this.fail(isLost ? DROPPED : error.message, { retryable: isLost || retryable, code: error.code });
  }

  #addToolCall({ index, id, type, function: { name, arguments: text } }) {
    const calls = this.message.toolCalls;
    calls[index] ??= { id, type, function: { name: "", arguments: "" } };
    if (name) calls[index].function.name = name;
    calls[index].function.arguments += text ?? "";
  }

  #end(outcome) {
    if (this.ended) return;
    clearTimeout(this.#patience);
    Object.assign(this.message, outcome);
    this.onChange();
    this.onEnd();
  }
}
