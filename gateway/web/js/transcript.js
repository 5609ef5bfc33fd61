/** The conversation on the page: one list item per message, the last answer updated in place. */
import { copyButton } from "./copy_button.js";
import { button, element } from "./elements.js";
import { heatMap } from "./heat_map.js";
import { MarkdownView } from "./markdown.js";
import { shown } from "./pictures.js";
import { Reasoning } from "./reasoning.js";
import { resultsForm, toolCard } from "./tool_card.js";

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
   * @param {{onAgain, onContinue, onResults, onTakeBack, onEdit, onChoose, onNewChat: Function}} actions
   *   what the reader may do, each with the message; `siblings` has those that stand in its place,
   *   `otherModels` what else could answer, `isLast` whether nothing follows it
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
    const item = document.createElement("li");
    item.className = `turn ${message.role}`;
    item.append(speaker(message.role));
    this.#list.append(item);
    if (message.role === "user") {
      this.#showQuestion(item, message);
      return null;
    }
    const view = new AnswerView(item, message, this.#actions);
    view.update();
    return view;
  }

  #showQuestion(item, message) {
    const edit = button("Edit", () => this.#edit(item, message));
    const copy = copyButton(message.content);
    const tools = document.createElement("div");
    tools.className = "question-tools";
    tools.append(...choices(message, this.#actions), copy, ...(message.results ? [] : [edit]));
    const pictures = message.pictures ? [shown(message.pictures)] : [];
    const text = message.content || !message.pictures ? question(message.content) : [];
    item.replaceChildren(speaker("user"), ...pictures, ...text, tools);
  }

  /** Write the question anew, in its place: the earlier one stays beside it. */
  #edit(item, message) {
    const form = document.createElement("form");
    form.className = "question-edit";
    const field = document.createElement("textarea");
    field.value = message.content;
    field.dir = "auto";
    field.setAttribute("aria-label", "The question");
    field.rows = Math.min(12, message.content.split("\n").length + 1);
    const back = () => {
      this.#showQuestion(item, message);
      item.querySelector(".question-tools button:last-of-type").focus();
    };
    const send = button("Ask this", () => {});
    send.type = "submit";
    form.append(field, button("Cancel", back), send);
    form.addEventListener("submit", (event) => {
      event.preventDefault();
      const text = field.value.trim();
      if (text || message.pictures) this.#actions.onEdit(message, text);
    });
    field.addEventListener("keydown", (event) => {
      if (event.key === "Escape") back();
      if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) form.requestSubmit();
    });
    item.replaceChildren(speaker("user"), ...(message.pictures ? [shown(message.pictures)] : []), form);
    field.focus();
  }
}

/** "‹ 2/3 ›", where several messages stand in one place. */
function choices(message, { siblings, onChoose }) {
  const all = siblings(message);
  if (all.length < 2) return [];
  const place = all.indexOf(message);
  const step = (text, label, by) => {
    const node = button(text, () => onChoose(all[place + by]));
    node.setAttribute("aria-label", label);
    node.disabled = !all[place + by];
    return node;
  };
  const span = document.createElement("span");
  span.className = "choices";
  const count = document.createElement("span");
  count.textContent = `${place + 1}/${all.length}`;
  span.append(step("‹", "The one before", -1), count, step("›", "The next one", +1));
  return [span];
}

class AnswerView {
  #item;
  #message;
  #actions;
  #reasoning = new Reasoning();
  #prose = document.createElement("div");
  #cards = document.createElement("div");
  #footer = document.createElement("div");
  #heat = null; // the tokens by probability, in place of the prose
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
    const { content, usage, seconds, finishReason, toolCalls } = this.#message;
    const meta = document.createElement("div");
    meta.className = "meta";
    meta.append(...choices(this.#message, this.#actions));
    if (usage) meta.append(figures(this.#message));
    const reason = document.createElement(finishReason === "stop" ? "span" : "em");
    reason.textContent = REASONS[finishReason] ?? finishReason;
    meta.append(reason);
    if (content) meta.append(copyButton(content));
    if (this.#message.logprobs?.length) meta.append(button("Probabilities", () => this.#toggleHeat()));
    if (content && !toolCalls.length && (finishReason === "length" || finishReason === "cancelled")) {
      meta.append(button("Continue", () => this.#actions.onContinue(this.#message)));
    }
    meta.append(button("Ask again", () => this.#actions.onAgain(this.#message)));
    const others = this.#actions.otherModels(this.#message.model);
    if (others.length) meta.append(this.#otherModel(others));
    const beside = this.#actions.siblings(this.#message);
    if (beside.length > 1) meta.append(button("Side by side", () => this.#compare(beside)));
    if (toolCalls.length && this.#actions.isLast(this.#message)) {
      this.#cards.append(resultsForm(toolCalls, (results) => this.#actions.onResults(this.#message, results)));
    }
    return meta;
  }

  /** Asks another model the same. */
  #otherModel(names) {
    const onchange = ({ target }) => target.value && this.#actions.onAgain(this.#message, target.value);
    const options = ["", ...names].map((value) => element("option", { value }, value || "Ask another model"));
    return element("select", { "aria-label": "Ask another model", onchange }, options);
  }

  /** All answers in one place, beside each other, until it is pressed once more. */
  #compare(messages) {
    const shown = this.#item.querySelector(".compared");
    this.#prose.hidden = !shown;
    if (shown) return shown.remove();
    const columns = messages.map(({ model, content, seconds, usage }) => {
      const prose = element("div", { class: "prose", dir: "auto" });
      new MarkdownView(prose).finish(content);
      const figures = usage ? `, ${usage.completion_tokens} tokens in ${duration(seconds)}` : "";
      return element("section", { "aria-label": model ?? "Answer" }, element("h3", {}, `${model ?? "Answer"}${figures}`), prose);
    });
    this.#prose.after(element("div", { class: "compared" }, columns));
  }

  #toggleHeat() {
    if (this.#heat) this.#heat.remove();
    else this.#footer.before((this.#heat = heatMap(this.#message.logprobs)));
    if (!this.#heat.isConnected) this.#heat = null;
    this.#prose.hidden = this.#heat !== null;
  }

  #fault() {
    const { message, retryable = true, code } = this.#message.fault;
    const box = document.createElement("div");
    box.className = "fault";
    const words = document.createElement("p");
    words.textContent = message;
    box.append(words);
    box.append(...choices(this.#message, this.#actions));
    const { onAgain, onTakeBack, onNewChat } = this.#actions;
    if (code === "context_length_exceeded") box.append(button("Start a new chat", onNewChat));
    // What the server refuses would be refused with every later question, too, as its history.
    box.append(retryable ? button("Try again", () => onAgain(this.#message)) : button("Edit the question", onTakeBack));
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

/** How long an answer took; the rest of its figures on demand. */
function figures({ usage, seconds, firstSeconds, model }) {
  const count = usage.completion_tokens;
  const summary = document.createElement("summary");
  summary.textContent = `${count} ${count === 1 ? "token" : "tokens"} in ${duration(seconds)}`;
  const rows = [
    ["Model", model],
    ["Prompt", `${usage.prompt_tokens} tokens`],
    ["From the cache", `${usage.prompt_tokens_details?.cached_tokens ?? 0} tokens`],
    ["First token after", firstSeconds === undefined ? undefined : duration(firstSeconds)],
    ["Speed", speed(count, seconds, firstSeconds)],
  ];
  const list = document.createElement("dl");
  for (const [name, value] of rows.filter(([, value]) => value !== undefined)) {
    const term = document.createElement("dt");
    term.textContent = name;
    const detail = document.createElement("dd");
    detail.textContent = value;
    list.append(term, detail);
  }
  const details = document.createElement("details");
  details.className = "figures";
  details.append(summary, list);
  return details;
}

function duration(seconds) {
  if (typeof seconds !== "number") return "–";
  return seconds < 1 ? `${Math.round(seconds * 1000)} ms` : `${seconds.toFixed(1)} s`;
}

function speed(count, seconds, firstSeconds) {
  const writing = seconds - firstSeconds; // what comes after the first token
  return count > 1 && writing > 0 ? `${((count - 1) / writing).toFixed(1)} tokens/s` : undefined;
}
