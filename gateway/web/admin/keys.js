/** The keys of a tenant: made, replaced and revoked here; a new one's text is shown once. */

import { attempted, button, card, confirmed, element, redraw, reveal, table, time } from "./elements.js";
import { may } from "./roles.js";

const SCOPES = ["chat", "responses", "usage"];
const ROLES = ["billing", "view", "admin", "owner"]; // of all tenants: an owner hands them out
const GRACE_S = 24 * 3600;

export function keysCard(api, tenantId, projects) {
  const node = card("Keys");
  const list = element("div");
  const said = element("span", { class: "said", role: "status" });
  node.append(list, form());

  function form() {
    const name = element("input", { name: "name", value: "default", required: true, maxlength: 200 });
    const scope = element("select", { name: "scope" }, [...SCOPES, ...(may("owner") ? ROLES : [])].map((one) => element("option", {}, one)));
    const project = element(
      "select",
      { name: "project" },
      projects.map((one) => element("option", { value: one.id, selected: one.is_default }, one.name)),
    );
    const user = element("input", { name: "user", maxlength: 200, placeholder: "nobody's" });
    const days = element("input", { name: "days", type: "number", min: 1, max: 36500, placeholder: "never" });
    return element(
      "form",
      { id: "new-key", onsubmit: submit },
      element(
        "div",
        { class: "fields" },
        element("label", {}, "Name", name),
        element("label", {}, "Scope", scope),
        element("label", {}, "Project", project),
        element("label", {}, "User", user),
        element("label", {}, "Ends in days", days),
      ),
      element(
        "div",
        { class: "form-actions" },
        element("button", { type: "submit", class: "plain strong" }, "Create a key"),
        said,
      ),
    );
  }

  async function submit(event) {
    event.preventDefault();
    const { name, scope, project, user, days } = event.target.elements;
    const expires_at = days.value ? Math.floor(Date.now() / 1000) + days.valueAsNumber * 86_400 : null;
    await attempt(async () => {
      const body = { name: name.value, scopes: [scope.value], project_id: project.value, expires_at, user_name: user.value.trim() || null };
      reveal((await api.post(`/tenants/${tenantId}/keys`, body)).key, "key");
    });
  }

  async function rotate(key) {
    const yes = await confirmed("Replace this key?", `The old one, ${key.public_id}, goes on working for a day.`, "Replace it");
    if (yes) {
      await attempt(async () => reveal((await api.post(`${path(key)}/rotate`, { grace_seconds: GRACE_S })).key, "key"));
    }
  }

  async function revoke(key) {
    const yes = await confirmed("Revoke this key?", `What runs under ${key.public_id} ends within a second, for good.`, "Revoke it");
    if (yes) await attempt(() => api.delete(path(key)));
  }

  async function attempt(work) {
    await attempted(said, work);
    await load();
  }

  const path = (key) => `/tenants/${tenantId}/keys/${key.public_id}`;

  async function load() {
    const { data } = await api.get(`/tenants/${tenantId}/keys`, { limit: 1000 });
    const names = new Map(projects.map((project) => [project.id, project.name]));
    const rows = data.reverse().map((key) => {
      const state = stateOf(key);
      const actions = [button("Replace", () => rotate(key)), button("Revoke", () => revoke(key), "danger")];
      return {
        props: { "data-key": key.public_id, class: state.isOver ? "ended" : null },
        cells: [
          element("code", {}, key.public_id),
          key.name,
          names.get(key.project_id) ?? "",
          key.user_name ?? "",
          key.scopes.join(", "),
          state.text,
          time(key.last_used_at),
          element("div", { class: "actions" }, state.isOver ? [] : actions),
        ],
      };
    });
    const columns = ["Key", "Name", "Project", "User", "Scopes", "State", "Last used", ""];
    redraw(list, table(columns, rows, "No keys yet."));
  }

  return { node, load };
}

function stateOf(key) {
  const now = Date.now() / 1000;
  if (key.revoked_at !== null) return { text: `revoked ${time(key.revoked_at)}`, isOver: true };
  for (const [end, word] of [
    [key.revoke_at, "replaced"],
    [key.expires_at, "expires"],
  ]) {
    if (end === null) continue;
    if (end <= now) return { text: `ended ${time(end)}`, isOver: true };
    return { text: `${word}, until ${time(end)}`, isOver: false };
  }
  return { text: "good", isOver: false };
}
