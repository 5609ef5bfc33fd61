/** Running requests, which can be ended, and the log of changes. */

import { button, card, confirmed, count, element, redraw, table, time } from "./elements.js";

const number = (title) => ({ title, number: true });

/** @param {string} [tenantId] all tenants' without it */
export function streamsCard(api, tenantId) {
  const node = card("Running requests");

  async function kill(stream) {
    const yes = await confirmed("End this request?", "Its client sees an error; what was generated is charged.", "End it");
    if (!yes) return;
    await api.delete(`/streams/${stream.id}`);
    await load();
  }

  async function load() {
    const { data } = await api.get("/streams", { tenant_id: tenantId });
    const columns = ["Tenant", "Model", "State", number("Prompt"), number("Generated"), "Since", ""];
    const rows = data.map((stream) => ({
      props: { "data-stream": stream.id },
      cells: [
        stream.tenant_name,
        stream.model,
        stream.state,
        count(stream.prompt_tokens),
        count(stream.generated_tokens),
        time(stream.created_at),
        element("div", { class: "actions" }, button("End", () => kill(stream), "danger")),
      ],
    }));
    redraw(node, node.firstElementChild, table(columns, rows, "No request runs."));
  }

  return { node, load };
}

/** @param {string} [tenantId] all tenants' without it */
export function auditCard(api, tenantId) {
  const node = card("Changes");
  const rows = element("div");
  let entries = [];
  let next = null;
  const field = element("input", { type: "search", placeholder: "Who, what or which", "aria-label": "Filter the changes", maxlength: 200 });
  const filter = () => field.value.trim() || undefined;
  field.addEventListener("input", load);
  node.append(element("div", { class: "form-actions" }, field), rows);

  async function load() {
    const search = filter();
    const page = await api.get("/audit_log", { tenant_id: tenantId, limit: 20, search });
    if (search !== filter()) return; // more was typed meanwhile
    entries = page.data;
    next = page.next;
    render(page.has_more);
  }

  async function more() {
    const page = await api.get("/audit_log", { tenant_id: tenantId, limit: 20, after: next, search: filter() });
    next = page.next;
    entries.push(...page.data);
    render(page.has_more);
  }

  function render(hasMore) {
    const shown = entries.map((entry) => ({
      cells: [time(entry.at), entry.actor, entry.action, entry.tenant_name ?? "", difference(entry)],
    }));
    redraw(
      rows,
      table(["Time", "Who", "What", "Tenant", "Change"], shown, filter() ? "No such change." : "Nothing was changed yet."),
      ...(hasMore ? [element("div", { class: "form-actions" }, button("Older changes", more))] : []),
    );
  }

  return { node, load };
}

function difference({ before, after, object_id }) {
  if (!before || !after) return object_id;
  return Object.keys(after)
    .filter((name) => JSON.stringify(before[name]) !== JSON.stringify(after[name]))
    .map((name) => `${name}: ${say(before[name])} → ${say(after[name])}`)
    .join(", ");
}

const say = (value) => (value === null ? "none" : typeof value === "object" ? JSON.stringify(value) : String(value));
