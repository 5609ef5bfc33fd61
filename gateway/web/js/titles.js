/** Titles that the model makes, of requests that others go before; off until the reader wants them. */
import { store, stored } from "./elements.js";

const STORAGE_KEY = "sluice.titles";
const ASK = "Name this conversation in at most six words, in its language. Answer with the name alone.";
const CHARS = 2_000; // of each message that is read for it
const TITLE_CHARS = 80;

export class Titles {
  #kept;
  #box = document.getElementById("titles");

  constructor(kept) {
    this.#kept = kept;
    this.#box.checked = stored(STORAGE_KEY, localStorage) === true;
    this.#box.addEventListener("change", () => store(STORAGE_KEY, this.#box.checked, localStorage));
  }

  /** Whether a conversation has its first answer, by which it is named, and the reader wants that. */
  isDue(conversation) {
    const answers = conversation.nodes.filter(({ role }) => role === "assistant");
    return this.#box.checked && answers.length === 1 && Boolean(answers[0].content) && !answers[0].fault;
  }

  /**
   * Name a conversation for which it is due, but not where somebody has named it.
   *
   * @returns {Promise<boolean>} whether it has another title now
   */
  async make(conversation, model) {
    const [question, answer] = conversation.messages;
    const { title } = conversation.metadata; // the question's first line so far
    if (!conversation.id) return false;
    const made = await this.#asked(question, answer, model);
    // Meanwhile it may have been renamed, here or elsewhere.
    if (!made || (await this.#kept.metadata(conversation.id)).title !== title) return false;
    conversation.metadata = { ...conversation.metadata, title: made };
    await this.#kept.change(conversation.id, conversation.metadata);
    return true;
  }

  async #asked(question, answer, model) {
    const said = [question, answer].map(({ role, content }) => ({ role, content: content.slice(0, CHARS) || "(a picture)" }));
    const response = await fetch("/v1/chat/completions", {
      method: "POST",
      headers: { "content-type": "application/json", "x-sluice-csrf": "1" },
      body: JSON.stringify({ model, messages: [...said, { role: "user", content: ASK }], max_tokens: 32, service_tier: "flex" }),
    }).catch(() => null);
    const text = response?.ok ? (await response.json()).choices[0].message.content : null;
    return plainTitle(text ?? "");
  }
}

/** The first line without quotes, marks of Markdown and a full stop at its end. */
function plainTitle(text) {
  const [line] = text.trim().split("\n");
  return line.replace(/[*_`#"“”„«»]+/g, "").replace(/^(title|name):\s*/i, "").trim().replace(/\.$/, "").slice(0, TITLE_CHARS);
}
