/** Wires the page together; every other module knows only its own part. */
import { ApiKey } from "./api_key.js";
import { Composer } from "./composer.js";
import { Conversation } from "./conversation.js";
import { Gauge } from "./gauge.js";
import { LinkState } from "./link_state.js";
import { ModelChoice } from "./model_choice.js";
import { Follower } from "./scrolling.js";
import { ChatSocket } from "./socket.js";
import { installTheme } from "./theme.js";
import { Transcript } from "./transcript.js";
import { Turn } from "./turn.js";

const byId = (id) => document.getElementById(id);

const socketUrl = new URL("v1/chat", location.href);
socketUrl.protocol = location.protocol === "https:" ? "wss:" : "ws:";
socketUrl.hash = "";

const conversation = Conversation.load();
const socket = new ChatSocket(socketUrl.href);
const apiKey = new ApiKey(() => socket.connect());
const composer = new Composer({ onSend: ask, onStop: () => turn?.stop() });
const follower = new Follower(byId("scroller"), byId("to-end"));
const gauge = new Gauge();
const linkState = new LinkState();
const modelChoice = new ModelChoice(byId("model"), byId("models"));
const transcript = new Transcript(byId("transcript"), { onRetry: askAgain, onEdit: edit, onNewChat: newChat });
let turn = null; // the one being answered

socket.onState = (state, detail) => {
  linkState.show(state, detail);
  if (state === "open") {
    modelChoice.show(detail.models);
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

function ask(text) {
  const message = conversation.ask(text);
  byId("welcome").hidden = true;
  transcript.add({ role: "user", content: text });
  answer(message);
}

function askAgain() {
  if (turn) return;
  transcript.dropLast();
  answer(conversation.answer());
  composer.focus();
}

/** Take the last question back into the field, to ask it in other words. */
function edit() {
  if (turn) return;
  composer.edit(conversation.takeBack());
  transcript.show(conversation.messages);
  gauge.setUsed(contextInUse());
  byId("welcome").hidden = conversation.messages.length > 0;
}

function answer(message) {
  const view = transcript.add(message);
  read(new Turn(socket, message, { model: modelChoice.chosen, messages: conversation.history() }), view);
  if (apiKey.known) turn.begin();
  else {
    turn.fail("There is no API key yet.");
    apiKey.ask();
  }
}

/** Show a turn as it comes. */
function read(next, view) {
  const redraw = oncePerFrame(() => {
    view.update();
    follower.grown();
  });
  turn = next;
  turn.onChange = () => {
    redraw();
    conversation.saveSoon();
  };
  turn.onContext = (tokens) => gauge.setUsed(tokens);
  turn.onEnd = () => {
    conversation.save();
    turn = null;
    composer.setBusy(false);
    redraw.now();
    byId("announcer").textContent = view.spoken;
  };
  composer.setBusy(true);
  byId("announcer").textContent = "Answering";
  follower.jump();
}

function newChat() {
  if (turn) {
    turn.onEnd = turn.onChange = turn.onContext = () => {};
    turn.stop();
    turn = null;
  }
  conversation.clear();
  transcript.show([]);
  gauge.setUsed(0);
  composer.setBusy(false);
  byId("welcome").hidden = false;
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
addEventListener("signed-out", () => conversation.clear());
byId("transcript").addEventListener("grown", () => follower.grown());
byId("new-chat").addEventListener("click", newChat);
byId("change-key").addEventListener("click", () => apiKey.ask());
byId("openers").addEventListener("click", (event) => {
  const button = event.target.closest("button");
  if (button) ask(button.textContent);
});
installTheme(byId("theme"));
byId("welcome").hidden = conversation.messages.length > 0;
const lastView = transcript.show(conversation.messages);
gauge.setUsed(contextInUse());
follower.jump();
if (conversation.unfinished) read(new Turn(socket, conversation.unfinished), lastView);
apiKey.start();
if (matchMedia("(hover: hover)").matches && apiKey.known) composer.focus();
