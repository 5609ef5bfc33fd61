/** The limits of a tenant, its projects and its keys: shown together, changed one scope at a time. */

import { card, count, element, redraw, table } from "./elements.js";

const FIELDS = [
  ["requests_per_minute", "Requests / min"],
  ["tokens_per_minute", "Tokens / min"],
  ["max_concurrent", "At once"],
  ["max_queued", "Queued"],
  ["monthly_tokens", "Tokens / month"],
  ["monthly_cost_micro", "Cost / month (micro)"],
  ["priority", "Priority"],
  ["weight", "Weight"],
  ["max_cached_blocks", "Cached blocks"],
];

export function limitsCard(api, tenantId, projects) {
  const node = card("Limits");
  const list = element("div");
  const said = element("span", { class: "said", role: "status" });
  const scope = element("select", { name: "scope", onchange: () => show() });
  const inputs = new Map(
    FIELDS.map(([name]) => [
      name,
      element("input", { name, type: "number", step: name === "weight" ? "any" : 1, placeholder: "none" }),
    ]),
  );
  let policies = [];
  node.append(
    list,
    element(
      "form",
      { id: "limits", onsubmit: submit },
      element(
        "div",
        { class: "fields" },
        element("label", {}, "Limits of", scope),
        FIELDS.map(([name, title]) => element("label", {}, title, inputs.get(name))),
      ),
      element(
        "div",
        { class: "form-actions" },
        element("button", { type: "submit", class: "plain strong" }, "Set limits"),
        said,
      ),
    ),
  );

  function show() {
    const found = policies.find((policy) => policy.scope_id === scope.value)?.limits ?? {};
    for (const [name, input] of inputs) input.value = found[name] ?? "";
  }

  async function submit(event) {
    event.preventDefault();
    const body = {};
    for (const [name, input] of inputs) if (input.value !== "") body[name] = input.valueAsNumber;
    const kind = scope.selectedOptions[0].dataset.kind;
    const where = kind === "tenant" ? "" : `/${kind}s/${scope.value}`;
    try {
      await api.put(`/tenants/${tenantId}${where}/limits`, body);
      await load(true);
      delete said.dataset.kind;
      said.textContent = "Set: all workers know within a second.";
    } catch (error) {
      said.dataset.kind = "error";
      said.textContent = error.message;
    }
  }

  /** @param {boolean} [keep] leave the form as it is */
  async function load(keep = false) {
    const [limits, keys] = await Promise.all([
      api.get(`/tenants/${tenantId}/limits`, { limit: 1000 }),
      api.get(`/tenants/${tenantId}/keys`, { limit: 1000 }),
    ]);
    policies = limits.data;
    const scopes = [
      { kind: "tenant", id: tenantId, name: "the tenant" },
      ...projects.map(({ id, name }) => ({ kind: "project", id, name: `project ${name}` })),
      ...keys.data
        .filter((key) => key.revoked_at === null)
        .map(({ id, name, public_id }) => ({ kind: "key", id, name: `key ${name} (${public_id})` })),
    ];
    const chosen = keep ? scope.value : tenantId;
    scope.replaceChildren(
      ...scopes.map(({ kind, id, name }) => element("option", { value: id, "data-kind": kind, selected: id === chosen }, name)),
    );
    const names = new Map(scopes.map(({ id, name }) => [id, name]));
    const columns = ["Scope", ...FIELDS.map(([, title]) => ({ title, number: true }))];
    const rows = policies.map(({ scope_id, limits: found }) => ({
      cells: [names.get(scope_id) ?? "a revoked key", ...FIELDS.map(([name]) => (found[name] === null ? "" : count(found[name])))],
    }));
    redraw(list, table(columns, rows, "Nothing is limited."));
    if (!keep) show();
  }

  return { node, load };
}
