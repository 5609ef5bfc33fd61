/** The conversation on the page: one list item per message, the last answer updated in place. */
import { copyText } from "./clipboard.js";
import { MarkdownView } from "./markdown.js";
import { Reasoning } from "./reasoning.js";
import { toolCard } from "./tool_card.js";

const REASONS = {
  stop: "finished",
  length: "cut off at the token limit",
  tool_calls: "waits for a tool",
  cancelled: "stopped",
};

const LONG_CHARS = 1_200;
const LONG_LINES = 16;

export class Transcript {
  #list;
  #actions;

  /**
   * @param {HTMLElement} list
   * @param {{onRetry: () => void, onEdit: () => void, onNewChat: () => void}} actions
   */
  constructor(list, actions) {
    this.#list = list;
    this.#actions = actions;
  }

  /** Show exactly these messages. Returns the last answer's view, if the last message is one. */
  show(messages) {
    this.#list.replaceChildren();
    return messages.map((message) => this.add(message)).at(-1);
  }

  /** Append a message; for an answer, the view to update while it grows. */
  add(message) {
    for (const button of this.#list.querySelectorAll("[data-only-last]")) button.remove();
    const item = document.createElement("li");
    item.className = `turn ${message.role}`;
    item.append(speaker(message.role));
    this.#list.append(item);
    if (message.role === "user") {
      item.append(...question(message.content));
      return null;
    }
    const view = new AnswerView(item, message, this.#actions);
    view.update();
    return view;
  }

  /** Take the last answer away: it is about to be written again. */
  dropLast() {
    this.#list.lastElementChild?.remove();
  }
}

class AnswerView {
  #item;
  #message;
  #actions;
  #reasoning = new Reasoning();
  #prose = document.createElement("div");
  #cards = document.createElement("div");
  #footer = document.createElement("div");
  #markdown = new MarkdownView(this.#prose);

  constructor(item, message, actions) {
    this.#item = item;
    this.#message = message;
    this.#actions = actions;
    this.#prose.className = "prose";
    this.#prose.dir = "auto"; // the side of list marks; each paragraph's is its own, in prose.css
    item.append(this.#reasoning.element, this.#prose, this.#cards, this.#footer);
  }

  /** Bring the page up to date with the message. */
  update() {
    const { content, reasoning, toolCalls, finishReason, fault } = this.#message;
    const ended = Boolean(finishReason || fault);
    this.#item.classList.toggle("pending", !ended && !content && !reasoning && toolCalls.length === 0);
    this.#reasoning.update(reasoning, { ended: ended || Boolean(content) });
    this.#item.setAttribute("aria-busy", String(!ended));
    if (ended) this.#markdown.finish(content);
    else this.#markdown.update(content);
    this.#cards.replaceChildren(...toolCalls.map(toolCard));
    this.#footer.replaceChildren();
    if (fault) this.#footer.append(this.#fault());
    else if (ended) this.#footer.append(this.#meta());
  }

  /** The answer as a screen reader should speak it. */
  get spoken() {
    return this.#message.fault?.message ?? `Answer: ${this.#prose.textContent}`;
  }

  #meta() {
    const { content, usage, seconds, finishReason } = this.#message;
    const meta = document.createElement("div");
    meta.className = "meta";
    if (usage) meta.append(figures(usage, seconds));
    const reason = document.createElement(finishReason === "stop" ? "span" : "em");
    reason.textContent = REASONS[finishReason] ?? finishReason;
    meta.append(reason);
    if (content) meta.append(copyButton(content));
    const again = button("Ask again", () => this.#actions.onRetry());
    again.dataset.onlyLast = "";
    meta.append(again);
    return meta;
  }

  #fault() {
    const { message, retryable = true, code } = this.#message.fault;
    const box = document.createElement("div");
    box.className = "fault";
    const words = document.createElement("p");
    words.textContent = message;
    box.append(words);
    const { onRetry, onEdit, onNewChat } = this.#actions;
    if (code === "context_length_exceeded") box.append(button("Start a new chat", onNewChat));
    // What the server refuses would be refused with every later question, too, as its history.
    const mend = retryable ? button("Try again", onRetry) : button("Edit the question", onEdit);
    mend.dataset.onlyLast = "";
    box.append(mend);
    return box;
  }
}

/** Who speaks, as the page shows it by place and colour; screen readers go from heading to heading. */
function speaker(role) {
  const heading = document.createElement("h2");
  heading.className = "visually-hidden";
  heading.textContent = role === "user" ? "You" : "Answer";
  return heading;
}

/** The nodes of a question; one that fills screens is shown from its beginning, the rest on demand. */
function question(content) {
  const text = document.createElement("div");
  text.className = "question";
  text.dir = "auto";
  text.textContent = content;
  if (content.length <= LONG_CHARS && content.split("\n").length <= LONG_LINES) return [text];
  text.classList.add("clipped");
  const more = button(`Show all ${content.length.toLocaleString("en")} characters`, () => {
    text.classList.remove("clipped");
    more.remove();
  });
  more.className = "more";
  return [text, more];
}

function figures(usage, seconds) {
  const count = usage.completion_tokens;
  const span = document.createElement("span");
  const time = seconds < 1 ? `${Math.round(seconds * 1000)} ms` : `${seconds.toFixed(1)} s`;
  span.textContent = `${count} ${count === 1 ? "token" : "tokens"} in ${time}`;
  const cached = usage.prompt_tokens_details?.cached_tokens ?? 0;
  span.title = `${usage.prompt_tokens} prompt tokens, ${cached} of them from the cache`;
  return span;
}

function button(text, onClick) {
  const node = document.createElement("button");
  node.type = "button";
  node.textContent = text;
  node.addEventListener("click", onClick);
  return node;
}

function copyButton(content) {
  const node = button("Copy", async () => {
    node.textContent = (await copyText(content)) ? "Copied" : "Press Ctrl+C";
    setTimeout(() => (node.textContent = "Copy"), 1600);
  });
  return node;
}
