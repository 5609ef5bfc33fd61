/** One question and its answer on the way: folds the server's messages into the answer. */

const REACH_WITHIN_MS = 10_000;
const RESUME_WITHIN_MS = 30_000; // the server's own patience, unless it is set otherwise
const TOO_LONG = "This conversation has become longer than the server takes at once, pictures included.";
const DROPPED = "The connection dropped before the answer was finished.";

export class Turn {
  id = crypto.randomUUID?.() ?? `t${Date.now()}-${Math.random().toString(36).slice(2)}`;
  #socket;
  #question;
  #patience = null;
  #sent = false;

  /** Called after every change of `message`. */
  onChange = () => {};
  /** Called once, when the turn has ended. */
  onEnd = () => {};
  /** Called with the tokens of context in use. */
  onContext = () => {};

  /**
   * A message with a `place` in a stream is one that this page was reading before a reload: `begin`
   * reads on there.
   *
   * @param question the fields of the request: messages, and model if one was chosen
   */
  constructor(socket, message, question = {}) {
    this.#socket = socket;
    this.message = message;
    this.#question = question;
    if (message.place) {
      this.id = message.place.id;
      this.#sent = true;
      this.disconnected();
    }
  }

  /** Ask now, or as soon as the connection is there; go on reading after it was lost. */
  begin() {
    if (this.ended) return;
    if (this.#sent) {
      const { streamId, lastSeq } = this.message.place;
      this.#socket.send({ type: "resume", id: this.id, stream_id: streamId, last_seq: lastSeq });
      return;
    }
    const request = { type: "chat", id: this.id, resumable: true, ...this.#question };
    if (this.#socket.isTooLong(request)) return this.fail(TOO_LONG, { retryable: false, code: "context_length_exceeded" });
    if (this.#socket.send(request)) {
      this.#sent = true;
      this.message.begun = Date.now();
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

  /** The connection is gone: what was already asked is read on once there is another. */
  disconnected() {
    if (!this.#sent) return;
    if (this.message.place?.streamId) this.#patience ??= setTimeout(() => this.fail(DROPPED), RESUME_WITHIN_MS);
    else this.fail(DROPPED);
  }

  fail(message, { retryable = true, code = null } = {}) {
    this.#end({ fault: { message, retryable, code } });
  }

  receive(event) {
    if (event.id !== this.id || this.ended) return;
    clearTimeout(this.#patience);
    this.#patience = null;
    if (this.message.place) this.message.place.lastSeq = event.seq;
    this[`_${event.type}`]?.(event);
  }

  _started({ seq, model, prompt_tokens: usedTokens, stream_id: streamId }) {
    this.message.model = model;
    this.message.place = { id: this.id, streamId, lastSeq: seq, usedTokens };
    this.onContext(usedTokens);
    this.onChange();
  }

  _delta({ content, reasoning_content: reasoning, tool_calls: toolCalls, logprobs }) {
    this.message.firstSeconds ??= (Date.now() - this.message.begun) / 1000;
    if (logprobs?.content) (this.message.logprobs ??= []).push(...logprobs.content);
    if (reasoning) this.message.reasoning = (this.message.reasoning ?? "") + reasoning;
    if (content) this.message.content += content;
    for (const fragment of toolCalls ?? []) this.#addToolCall(fragment);
    this.onContext((this.message.place.usedTokens += 1)); // at least; `done` brings the exact count
    this.onChange();
  }

  _done({ finish_reason: finishReason, usage }) {
    this.onContext(usage.total_tokens);
    this.#end({ finishReason, usage, seconds: (Date.now() - this.message.begun) / 1000 });
  }

  _error({ error, retryable, status }) {
    const isLost = this.message.place?.streamId && (status === 404 || status === 410); // not kept any more
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
    delete this.message.place;
    delete this.message.begun;
    this.onChange();
    this.onEnd();
  }
}
