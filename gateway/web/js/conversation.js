/**
 * What was said, kept in this tab's session storage so that a reload shows it again.
 *
 * A message is `{role: "user", content}` or `{role: "assistant", content, reasoning,
 * toolCalls, usage, seconds, finishReason, fault}`; an assistant message with neither finishReason
 * nor fault is being written. Then it has `begun`, the time, and `place`, where its stream is read.
 */

const STORAGE_KEY = "sluice.conversation";
const SAVE_EVERY_MS = 500;

export class Conversation {
  messages = [];
  #saving = null;

  static load() {
    const conversation = new Conversation();
    try {
      const stored = JSON.parse(sessionStorage.getItem(STORAGE_KEY));
      if (Array.isArray(stored)) conversation.messages = stored;
    } catch {
      // Not ours or cut short: start over.
    }
    const last = conversation.unfinished;
    if (last && !last.place?.streamId) {
      last.fault = { message: "The page was left before this answer began." };
    }
    return conversation;
  }

  /** The answer that is being written, if any. */
  get unfinished() {
    const last = this.messages.at(-1);
    return last?.role === "assistant" && !last.finishReason && !last.fault ? last : null;
  }

  /** Save within half a second: for changes that come by the token. */
  saveSoon() {
    this.#saving ??= setTimeout(() => this.save(), SAVE_EVERY_MS);
  }

  save() {
    clearTimeout(this.#saving);
    this.#saving = null;
    try {
      sessionStorage.setItem(STORAGE_KEY, JSON.stringify(this.messages));
    } catch {
      // Full or blocked storage costs the memory over a reload, not the conversation.
    }
  }

  clear() {
    this.messages = [];
    this.save();
  }

  ask(content) {
    this.messages.push({ role: "user", content });
    return this.answer();
  }

  /** Take the last question and its answer back. Returns the question. */
  takeBack() {
    const [{ content }] = this.messages.splice(-2);
    this.save();
    return content;
  }

  /** Begin the answer to the last question, in the place of an earlier one if there is one. */
  answer() {
    if (this.messages.at(-1)?.role === "assistant") this.messages.pop();
    const message = { role: "assistant", content: "", toolCalls: [] };
    this.messages.push(message);
    this.save();
    return message;
  }

  /** The messages as the server wants them: all before the answer being written. */
  history() {
    return this.messages.slice(0, -1).flatMap(({ role, content, toolCalls }) => {
      if (role === "user") return [{ role, content }];
      if (toolCalls.length) return [{ role, content: content || null, tool_calls: toolCalls }];
      return content ? [{ role, content }] : [];
    });
  }
}
