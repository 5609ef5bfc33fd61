/**
 * A conversation: a tree of messages, of which one line is shown and goes on. Every edit of a question
 * and every further answer stands beside the earlier ones.
 *
 * A message is `{role: "user", content}`, with its `pictures` as data: URLs, or the `results` of tools if it is their answer, or `{role: "assistant", content, reasoning, toolCalls, usage,
 * seconds, finishReason, fault}`, with its `key`, the key of its `parent` (null: it begins the
 * conversation) and, once the server keeps it, its `itemId` there. An assistant message with neither
 * finishReason nor fault is being written. Then it has `begun`, the time, and `place`, where its stream
 * is read. The one that is shown is also in this tab's session storage, so that a reload goes on.
 */

import { store, stored } from "./elements.js";

const STORAGE_KEY = "sluice.conversation";
const SAVE_EVERY_MS = 500;
const TITLE_CHARS = 80;

const newKey = () => crypto.randomUUID?.() ?? `m${Date.now()}-${Math.random().toString(36).slice(2)}`;

export class Conversation {
  static #shown = null;

  id = null; // on the server, once it is kept
  metadata = {};
  isTemporary = false;
  nodes = []; // in the order in which they were made
  leaf = null; // the key of the last message of the line
  #saving = null;

  constructor(fields = {}) {
    Object.assign(this, fields);
  }

  static load() {
    let conversation = new Conversation();
    const kept = stored(STORAGE_KEY);
    if (Array.isArray(kept?.nodes)) conversation = new Conversation(kept);
    const last = conversation.unfinished;
    if (last && !last.place?.streamId) {
      last.fault = { message: "The page was left before this answer began." };
    }
    conversation.show();
    return conversation;
  }

  /** This is the one on the page from now on. */
  show() {
    Conversation.#shown = this;
    this.save();
  }

  /** The line that is shown, from its first message. */
  get messages() {
    const byKey = new Map(this.nodes.map((node) => [node.key, node]));
    const line = [];
    for (let node = byKey.get(this.leaf); node; node = byKey.get(node.parent)) line.push(node);
    return line.reverse();
  }

  /** The answer that is being written, if any. */
  get unfinished() {
    const last = this.messages.at(-1);
    return last?.role === "assistant" && !last.finishReason && !last.fault ? last : null;
  }

  find(key) {
    return this.nodes.find((node) => node.key === key);
  }

  /** What stands in the place of a message, the message among it. */
  siblings({ parent }) {
    return this.nodes.filter((node) => node.parent === parent);
  }

  /** Show the newest line through this message. */
  choose(message) {
    let node = message;
    for (let next = node; next; next = this.nodes.findLast(({ parent }) => parent === node.key)) node = next;
    this.leaf = node.key;
    this.save();
  }

  /** Save within half a second: for changes that come by the token. */
  saveSoon() {
    this.#saving ??= setTimeout(() => this.save(), SAVE_EVERY_MS);
  }

  save() {
    clearTimeout(this.#saving);
    this.#saving = null;
    if (Conversation.#shown !== this) return;
    store(STORAGE_KEY, this);
  }

  /** Ask in the place of an earlier question, or at the end. Returns the answer, yet empty. */
  ask(content, pictures = [], earlier = null) {
    this.metadata.title ??= content.trim().split("\n")[0].slice(0, TITLE_CHARS) || "Picture";
    const more = pictures.length ? { pictures } : {};
    const question = this.#add({ role: "user", content, ...more }, earlier ? earlier.parent : this.leaf);
    return this.answer(question);
  }

  /** Go on with what tools have answered. Returns the answer, yet empty. */
  give(results, message) {
    const content = results.map((result) => result.content).join("\n\n");
    return this.answer(this.#add({ role: "user", content, results }, message.key));
  }

  /** Go back to before the last question. Returns that. */
  takeBack() {
    const question = this.messages.findLast(({ role }) => role === "user");
    this.leaf = question.parent;
    this.save();
    return question;
  }

  /** Begin another answer to a question. One that has failed without a word is not kept beside it. */
  answer(question, content = "") {
    this.nodes = this.nodes.filter((node) => node.parent !== question.key || !isNothing(node));
    return this.#add({ role: "assistant", content, toolCalls: [] }, question.key);
  }

  #add(message, parent) {
    const node = { key: newKey(), parent, ...message };
    this.nodes.push(node);
    this.leaf = node.key;
    this.save();
    return node;
  }

  /** The messages as the server wants them: all before the answer being written. */
  history() {
    return this.messages.slice(0, -1).flatMap(({ role, content, pictures, toolCalls, results }) => {
      if (results) return results.map(({ id, content: text }) => ({ role: "tool", tool_call_id: id, content: text }));
      if (role === "user") return [{ role, content: pictures ? parts(content, pictures) : content }];
      if (toolCalls.length) return [{ role, content: content || null, tool_calls: toolCalls }];
      return content ? [{ role, content }] : [];
    });
  }
}

function parts(content, pictures) {
  const shown = pictures.map((url) => ({ type: "image_url", image_url: { url } }));
  return content ? [...shown, { type: "text", text: content }] : shown;
}

/** Whether a message is an answer that has failed before its first word. */
export function isNothing({ fault, content, reasoning, toolCalls }) {
  return Boolean(fault) && !content && !reasoning && !toolCalls?.length;
}
