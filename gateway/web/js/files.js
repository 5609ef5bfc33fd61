/** Conversations as files: written as Markdown and JSON, read from that JSON and from ChatGPT's export. */
import { Conversation } from "./conversation.js";
import { details, message, NotKept } from "./kept.js";

const FORMAT = "sluice.conversation/1";

/** A conversation as JSON that `imported` takes. */
export function asJson({ metadata, nodes, leaf }) {
  const messages = nodes.map((node) => ({
    id: node.key, parent_id: node.parent, role: node.role, content: node.content, pictures: node.pictures, ...details(node),
  }));
  return JSON.stringify({ format: FORMAT, title: metadata.title ?? "", current: leaf, messages }, null, 2);
}

/** The line that is shown, as Markdown. */
export function asMarkdown({ metadata, messages }) {
  const parts = messages.map(({ role, content, pictures = [] }) => {
    const shown = pictures.map((url) => `![](${url})\n\n`).join("");
    return `## ${role === "user" ? "Question" : "Answer"}\n\n${shown}${content.trim()}`;
  });
  return [`# ${metadata.title ?? "Conversation"}`, ...parts].join("\n\n") + "\n";
}

/**
 * The conversations in a file: the one that `asJson` wrote, or all of the `conversations.json` that
 * ChatGPT exports. Raises `NotKept` with words for the reader.
 */
export function imported(text) {
  let given = null;
  try {
    given = JSON.parse(text);
  } catch {
    // Said below.
  }
  if (given?.format === FORMAT && Array.isArray(given.messages)) return [own(given)];
  const exported = [given].flat().filter((one) => one?.mapping !== null && typeof one?.mapping === "object");
  if (exported.length) return exported.map(ofChatGpt).filter(({ nodes }) => nodes.length);
  throw new NotKept(`This is neither a conversation that was exported here as JSON ("format": "${FORMAT}") nor the conversations.json of ChatGPT's export.`);
}

function own(given) {
  const nodes = [];
  for (const { id, parent_id: parent, ...rest } of given.messages) {
    const isKnown = parent === null || nodes.some(({ key }) => key === parent);
    if (typeof id !== "string" || typeof rest.content !== "string" || !isKnown || nodes.some(({ key }) => key === id)) {
      throw new NotKept(`Message ${nodes.length + 1} of the file has no id of its own, no content, or a parent_id that is not before it.`);
    }
    nodes.push(message({ ...rest, key: id, parent }));
  }
  return conversation(given.title, nodes, given.current);
}

/** The questions and answers of a tree in which there is more: instructions, calls of tools, thoughts. */
function ofChatGpt({ title, mapping, current_node: current }) {
  const nodes = [];
  const pending = Object.keys(mapping).filter((id) => !Object.hasOwn(mapping, mapping[id]?.parent ?? "")).map((id) => [id, null]);
  const seen = new Set();
  let leaf = null;
  while (pending.length) {
    const [id, parent] = pending.shift();
    if (seen.has(id)) continue;
    seen.add(id);
    const { message: given, children } = mapping[id] ?? {};
    const node = said(id, parent, given);
    if (node) nodes.push(node);
    const next = node?.key ?? parent;
    if (id === current) leaf = next;
    for (const child of Array.isArray(children) ? children : []) if (Object.hasOwn(mapping, child)) pending.push([child, next]);
  }
  return conversation(title, nodes, leaf);
}

/** A message that people would call one; two of one speaker in a row stay as they are. */
function said(key, parent, given) {
  const role = given?.author?.role;
  const parts = given?.content?.parts;
  const content = Array.isArray(parts) ? parts.filter((part) => typeof part === "string").join("\n\n").trim() : "";
  const isShown = ["user", "assistant"].includes(role) && (given.recipient ?? "all") === "all" && content;
  return isShown ? message({ key, parent, role, content, model: given.metadata?.model_slug }) : null;
}

function conversation(title, nodes, current) {
  const leaf = nodes.some(({ key }) => key === current) ? current : (nodes.at(-1)?.key ?? null);
  return new Conversation({ metadata: { title: String(title ?? "Untitled").slice(0, 200) }, nodes, leaf });
}
