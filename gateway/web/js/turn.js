/** One question and its answer on the way: folds the server's messages into the answer. */

const REACH_WITHIN_MS = 10_000;

export class Turn {
  id = crypto.randomUUID?.() ?? `t${Date.now()}-${Math.random().toString(36).slice(2)}`;
  #socket;
  #question;
  #patience = null;
  #begun = 0;
  #sent = false;
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

  /** Ask now, or as soon as the connection is there. */
  begin() {
    if (this.#sent || this.ended) return;
    const request = { type: "chat", id: this.id, ...this.#question };
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
    if (this.#sent) this.#socket.send({ type: "cancel", id: this.id });
    else this.#end({ finishReason: "cancelled" });
  }

  /** The connection is gone: what was already asked will not be answered any more. */
  disconnected() {
    if (this.#sent) this.fail("The connection dropped before the answer was finished.");
  }

  fail(message, { retryable = true, code = null } = {}) {
    this.#end({ fault: { message, retryable, code } });
  }

  receive(event) {
    if (event.id !== this.id || this.ended) return;
    this[`_${event.type}`]?.(event);
  }

  _started({ prompt_tokens: promptTokens }) {
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

  _error({ error, retryable }) {
    this.fail(error.message, { retryable, code: error.code });
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
