/** Wires the page together; every other module knows only its own part. */
import { ApiKey } from "./api_key.js";
import { Composer } from "./composer.js";
import { Conversation } from "./conversation.js";
import { Gauge } from "./gauge.js";
import { LinkState } from "./link_state.js";
import { ModelChoice } from "./model_choice.js";
import { Kept } from "./kept.js";
import { Library } from "./library.js";
import { Follower } from "./scrolling.js";
import { Settings } from "./settings.js";
import { installShortcuts } from "./shortcuts.js";
import { ChatSocket } from "./socket.js";
import { installTheme } from "./theme.js";
import { Titles } from "./titles.js";
import { Transcript } from "./transcript.js";
import { Turn } from "./turn.js";

const byId = (id) => document.getElementById(id);

const socketUrl = new URL("v1/chat", location.href);
socketUrl.protocol = location.protocol === "https:" ? "wss:" : "ws:";
socketUrl.hash = "";

let conversation = Conversation.load();
const kept = new Kept();
const titles = new Titles(kept);
const library = new Library(kept, { onOpen: opened, onDeleted: deleted });
const socket = new ChatSocket(socketUrl.href);
const apiKey = new ApiKey((isKept) => {
  socket.connect();
  library.enable(isKept);
  openFromAddress();
});
const composer = new Composer({ onSend: ask, onStop: () => turn?.stop() });
const follower = new Follower(byId("scroller"), byId("to-end"));
const gauge = new Gauge();
const linkState = new LinkState();
const settings = new Settings();
const modelChoice = new ModelChoice(byId("model"), byId("models"));
modelChoice.onChange = () => composer.pictures.show(modelChoice.sees);
const transcript = new Transcript(byId("transcript"), {
  onAgain: (message, model) => again(message, "", model),
  onResults: (message, results) => turn || goOn(conversation.give(results, message)),
  otherModels: (model) => modelChoice.all.filter((name) => name !== model),
  onContinue: (message) => again(message, message.content),
  onTakeBack: takeBack,
  onEdit: (message, text) => turn || ask(text, message.pictures, message),
  onChoose: choose,
  onNewChat: newChat,
  siblings: (message) => conversation.siblings(message),
  isLast: (message) => conversation.leaf === message.key,
});
let turn = null; // the one being answered

socket.onState = (state, detail) => {
  linkState.show(state, detail);
  if (state === "open") {
    modelChoice.show(detail.models, detail.image_models);
    socket.mostBytes = detail.max_message_bytes;
    gauge.setCapacity(detail.max_model_len);
    turn?.begin();
  } else {
    turn?.disconnected();
    if (state === "refused") apiKey.ask(detail);
    else if (state === "waiting") apiKey.check(); // The handshake may have been refused.
  }
};
socket.onMessage = (message) => {
  // An error about no turn still answers the one that was just sent.
  if (message.type === "error" && message.id === null) turn?.fail(message.error.message);
  else turn?.receive(message);
};

function ask(text, pictures = [], earlier = null) {
  goOn(conversation.ask(text, pictures, earlier));
}

function goOn(message) {
  showLine(message);
  answer(message);
}

/** Answer a question once more, or go on with an answer that was cut. */
function again({ parent }, begun = "", model = undefined) {
  if (turn) return;
  const message = conversation.answer(conversation.find(parent), begun);
  showLine(message);
  answer(message, begun, model);
  composer.focus();
}

/** Take the last question back into the field, to ask it in other words. */
function takeBack() {
  if (turn) return;
  const { content, pictures } = conversation.takeBack();
  composer.edit(content, pictures);
  showLine();
}

function choose(message) {
  if (turn) return;
  conversation.choose(message);
  showLine();
}

/** Show the conversation's line, up to `before`. Returns the view of the last answer. */
function showLine(before = null) {
  const line = conversation.messages;
  byId("welcome").hidden = line.length > 0;
  byId("not-kept").hidden = !conversation.isTemporary;
  byId("temporary").checked = conversation.isTemporary;
  gauge.setUsed(contextInUse());
  library.mark(conversation.id);
  return transcript.show(before ? line.slice(0, line.indexOf(before)) : line);
}

/** Put another conversation on the page. */
function show(next) {
  leave();
  conversation = next;
  conversation.show();
  history.replaceState(null, "", conversation.id ? `#chat=${conversation.id}` : location.pathname + location.search);
  composer.setBusy(false);
  const view = showLine();
  follower.jump();
  return view;
}

/** What is being answered is stopped, and kept as far as it has come. */
function leave() {
  if (!turn) return;
  const { message } = turn;
  turn.onEnd = turn.onChange = turn.onContext = () => {};
  turn.stop();
  if (!turn.ended) message.finishReason = "cancelled";
  turn = null;
  kept.save(conversation);
}

function opened(next) {
  show(next);
  if (!next.id) keep();
}

function deleted(id) {
  if (conversation.id === id) newChat();
}

async function openFromAddress() {
  const id = new URLSearchParams(location.hash.slice(1)).get("chat");
  if (!id || id === conversation.id || !kept.isOn) return;
  const next = await kept.open(id).catch((error) => library.say(error.message));
  if (next) show(next);
}

/** Keep what is new of the conversation on the page, and show it in the list. */
async function keep() {
  const current = conversation;
  await kept.save(current);
  if (current !== conversation || !current.id) return;
  if (location.hash !== `#chat=${current.id}`) history.replaceState(null, "", `#chat=${current.id}`);
  await library.refresh();
  library.mark(current.id);
}

/** The next question may come before this is done. */
async function keepNamed(current) {
  const isDue = titles.isDue(current);
  await keep();
  if (isDue && (await titles.make(current, modelChoice.chosen).catch(() => false))) await library.refresh();
}

/** Another tab has changed a conversation. */
async function changedElsewhere(id) {
  library.refresh();
  const current = conversation;
  if (turn || !current.id || (id !== null && id !== current.id)) return;
  const found = await kept.open(current.id).catch(() => null);
  if (turn || current !== conversation) return;
  if (!found) return newChat();
  current.metadata = found.metadata;
  const known = new Set(current.nodes.map(({ itemId }) => itemId));
  const news = found.nodes.filter(({ itemId }) => !known.has(itemId));
  if (!news.length) return;
  const keys = new Map(current.nodes.map(({ key, itemId }) => [itemId, key]));
  for (const node of news) node.parent = keys.get(node.parent) ?? node.parent;
  current.nodes.push(...news);
  // Who reads the end of a line goes on with it; who reads another one stays there.
  if (news.some(({ parent }) => parent === current.leaf)) current.choose(current.find(current.leaf));
  showLine();
  follower.grown();
}

function answer(message, begun = "", model = modelChoice.chosen) {
  const view = transcript.add(message);
  keep(); // the question
  const messages = [...settings.messages, ...conversation.history()];
  const goesOn = begun ? { continue_final_message: true } : {};
  if (begun) messages.push({ role: "assistant", content: begun });
  read(new Turn(socket, message, { model, messages, ...settings.fields, ...goesOn }), view);
  if (apiKey.known) turn.begin();
  else {
    turn.fail("There is no API key yet.");
    apiKey.ask();
  }
}

/** Show a turn as it comes. */
function read(next, view) {
  let used = null; // tokens of context
  const redraw = oncePerFrame(() => {
    view.update();
    if (used !== null) gauge.setUsed(used);
    follower.grown();
  });
  turn = next;
  turn.onChange = () => {
    redraw();
    conversation.saveSoon();
  };
  turn.onContext = (tokens) => {
    used = tokens;
    redraw();
  };
  turn.onEnd = () => {
    conversation.save();
    turn = null;
    composer.setBusy(false);
    redraw.now();
    keepNamed(conversation);
    byId("announcer").textContent = view.spoken;
  };
  composer.setBusy(true);
  byId("announcer").textContent = "Answering";
  follower.jump();
}

function newChat() {
  show(new Conversation({ isTemporary: byId("temporary").checked }));
  byId("announcer").textContent = "New chat";
  composer.focus();
}

/** Draws at most once per frame however many tokens arrive; `now` draws what is outstanding. */
function oncePerFrame(draw) {
  let frame = null;
  const run = () => {
    frame = null;
    draw();
  };
  const request = () => (frame ??= requestAnimationFrame(run));
  request.now = () => {
    cancelAnimationFrame(frame);
    run();
  };
  return request;
}

function contextInUse() {
  const last = conversation.messages.findLast((message) => message.usage ?? message.place);
  return last?.usage?.total_tokens ?? last?.place.usedTokens ?? 0;
}

// The server writes on for `resume_grace_s`: after a reload the answer is read on.
addEventListener("pagehide", () => conversation.save());
addEventListener("signed-out", () => new Conversation().show());
byId("transcript").addEventListener("grown", () => follower.grown());
byId("new-chat").addEventListener("click", newChat);
byId("change-key").addEventListener("click", () => apiKey.ask());
byId("openers").addEventListener("click", (event) => {
  const button = event.target.closest("button");
  if (button) ask(button.textContent);
});
byId("temporary").addEventListener("change", newChat);
kept.onChange = changedElsewhere;
kept.onTrouble = (words) => library.say(`Not kept: ${words}`);
addEventListener("hashchange", openFromAddress);
document.addEventListener("visibilitychange", () => {
  if (document.visibilityState === "visible") changedElsewhere(null); // on another device, perhaps
});
installTheme(byId("theme"));
installShortcuts();
const lastView = showLine();
follower.jump();
if (conversation.unfinished) read(new Turn(socket, conversation.unfinished), lastView);
apiKey.start();
if (matchMedia("(hover: hover)").matches) composer.focus();
