/**
 * The conversations that the server keeps, over `/v1/conversations`: an item for each message, with
 * what only this page knows in its `client_data`.
 */
import { Conversation, isNothing } from "./conversation.js";

const PAGE = 100;

export class NotKept extends Error {}

export class Kept {
  #queue = Promise.resolve();
  #otherTabs = new BroadcastChannel("sluice.conversations");
  isOn = false;
  /** Called with the id of a conversation that another tab has changed; null: all may have. */
  onChange = () => {};
  /** Called with words when something could not be kept. */
  onTrouble = () => {};

  constructor() {
    this.#otherTabs.addEventListener("message", ({ data }) => this.onChange(data));
  }

  /** @returns {Promise<{data: object[], has_more: boolean}>} those with this text, last used first */
  list(search, after) {
    return request("GET", `?${new URLSearchParams({ limit: PAGE, ...(search && { search }), ...(after && { after }) })}`);
  }

  /** Keep what is new of a conversation, each message once it is whole. */
  save(conversation) {
    if (!this.isOn || conversation.isTemporary) return this.#queue;
    this.#queue = this.#queue.then(() => this.#write(conversation)).catch((error) => {
      if (!(error instanceof NotKept)) throw error;
      this.onTrouble(error.message);
    });
    return this.#queue;
  }

  async open(id) {
    const metadata = await this.metadata(id);
    const nodes = [];
    for (let page, after; page?.has_more ?? true; after = page.last_id) {
      const query = { order: "asc", limit: PAGE, ...(after && { after }) };
      page = await request("GET", `/${encodeURIComponent(id)}/items?${new URLSearchParams(query)}`);
      for (const item of page.data) if (item.type === "message") nodes.push(fromItem(item, nodes.at(-1)));
    }
    return new Conversation({ id, metadata, nodes, leaf: nodes.at(-1)?.key ?? null });
  }

  async metadata(id) {
    return (await request("GET", `/${encodeURIComponent(id)}`)).metadata;
  }

  async change(id, metadata) {
    await request("POST", `/${encodeURIComponent(id)}`, { metadata });
    this.#otherTabs.postMessage(id);
  }

  async delete(id) {
    await request("DELETE", `/${encodeURIComponent(id)}`);
    this.#otherTabs.postMessage(id);
  }

  async #write(conversation) {
    if (conversation.id === null) {
      const made = await request("POST", "", { metadata: conversation.metadata });
      conversation.id = made.id;
    }
    for (const node of conversation.nodes) {
      const isWhole = node.role === "user" || node.finishReason || node.fault;
      const parent = node.parent === null ? null : conversation.find(node.parent);
      if (node.itemId || !isWhole || isNothing(node) || (parent && !parent.itemId)) continue;
      const path = `/${encodeURIComponent(conversation.id)}/items`;
      const { data } = await request("POST", path, { items: [toItem(node, parent?.itemId ?? "")] });
      node.itemId = data[0].id;
    }
    conversation.save();
    this.#otherTabs.postMessage(conversation.id);
  }
}

async function request(method, path, body) {
  const response = await fetch(`/v1/conversations${path}`, {
    method,
    headers: { "content-type": "application/json", "x-sluice-csrf": "1" },
    body: body === undefined ? undefined : JSON.stringify(body),
    cache: "no-store",
  }).catch(() => null);
  const answer = await response?.json().catch(() => null);
  if (!response?.ok || !answer) throw new NotKept(answer?.error?.message ?? "The server does not answer.");
  return answer;
}

function toItem(node, parentId) {
  const { role, content, pictures = [] } = node;
  const type = role === "user" ? "input_text" : "output_text";
  const parts = pictures.map((url) => ({ type: "input_image", image_url: url }));
  return { type: "message", role, content: [...parts, { type, text: content }], parent_id: parentId, client_data: details(node) };
}

function fromItem({ id, role, content, parent_id: parentId, client_data: data }, previous) {
  const pictures = content.flatMap((part) => part.image_url ?? []);
  const text = content.filter((part) => part.type !== "input_image").map((part) => part.text ?? part.refusal ?? "").join("\n\n");
  const parent = parentId === undefined ? (previous?.key ?? null) : parentId || null;
  return message({ ...data, role, content: text, pictures, key: id, parent, itemId: id });
}

export const details = ({ reasoning, toolCalls, usage, seconds, firstSeconds, finishReason, fault, model, results }) =>
  ({ reasoning, toolCalls, usage, seconds, firstSeconds, finishReason, fault, model, results });

/** A message with no more than what the page shows, each field of its kind: others may have written it. */
export function message({ key, parent, itemId, role, content, ...rest }) {
  const base = { key: String(key), parent: parent === null ? null : String(parent), content: String(content) };
  if (itemId) base.itemId = itemId;
  if (role !== "assistant") {
    const results = Array.isArray(rest.results) ? rest.results.filter(({ id, content } = {}) => [id, content].every((text) => typeof text === "string")) : [];
    // An address elsewhere would tell its owner who reads this.
    const pictures = Array.isArray(rest.pictures) ? rest.pictures.filter((url) => typeof url === "string" && url.startsWith("data:image/")) : [];
    return { ...base, role: "user", ...(pictures.length && { pictures }), ...(results.length && { results: results.map(({ id, content }) => ({ id, content })) }) };
  }
  const { reasoning, toolCalls, usage, seconds, firstSeconds, finishReason, fault, model } = rest;
  const calls = Array.isArray(toolCalls) ? toolCalls.filter((call) => typeof call?.function?.name === "string") : [];
  return {
    ...base,
    role,
    toolCalls: calls.map(({ id, type, function: { name, arguments: text } }) => ({ id, type, function: { name, arguments: String(text) } })),
    ...(typeof reasoning === "string" && { reasoning }),
    ...(typeof model === "string" && { model }),
    ...(Number.isInteger(usage?.completion_tokens) && Number.isInteger(usage.total_tokens) && { usage }),
    ...(typeof seconds === "number" && { seconds }),
    ...(typeof firstSeconds === "number" && { firstSeconds }),
    ...(typeof fault?.message === "string" ? { fault } : { finishReason: String(finishReason ?? "stop") }),
  };
}
