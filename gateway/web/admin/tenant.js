/** One tenant: what it used, its limits, projects, keys, adapters, MCP servers, webhooks, running requests and changes. */

import { adaptersCard } from "./adapters.js";
import { budgetsCard } from "./budgets.js";
import { button, card, confirmed, count, element, table } from "./elements.js";
import { NOT_SEEN, show } from "./everybody.js";
import { keysCard } from "./keys.js";
import { limitsCard } from "./limits.js";
import { auditCard, streamsCard } from "./live.js";
import { mcpCard } from "./mcp.js";
import { refusalsCard } from "./refusals.js";
import { may } from "./roles.js";
import { usageCard } from "./usage.js";
import { webhooksCard } from "./webhooks.js";

const DAYS = 30;

export class TenantView {
  #api;
  #tenant;
  #onChange;
  #title = element("div", { class: "view-title" });
  #models = card(`Models of the last ${DAYS} days`);
  #projects = card("Projects");
  #cards;
  #budgets;
  #streams;
  #webhooks;

  /**
   * @param {() => void} onChange the list of tenants is not true any more
   * @param {object[]} projects of the tenant
   */
  constructor(api, tenant, projects, onChange) {
    this.#api = api;
    this.#tenant = tenant;
    this.#onChange = onChange;
    this.#streams = streamsCard(api, tenant.id);
    this.#budgets = budgetsCard(api, tenant.id);
    const limits = limitsCard(api, tenant.id, projects);
    const keys = keysCard(api, tenant.id, projects);
    const adapters = adaptersCard(api, tenant.id);
    const servers = mcpCard(api, tenant.id);
    this.#webhooks = webhooksCard(api, tenant.id);
    const audit = auditCard(api, tenant.id);
    const seen = may("view") ? [refusalsCard(api, tenant.id), adapters, servers, this.#streams, this.#webhooks, audit] : [];
    this.#cards = [this.#budgets, usageCard(api, tenant.id, projects), limits, keys, ...seen];
    for (const wide of this.#cards) wide.node.classList.add("wide");
    this.#showTitle();
    this.#showProjects(projects);
  }

  get nodes() {
    return [this.#title, this.#models, ...this.#cards.map((one) => one.node), this.#projects];
  }

  async load() {
    const start_time = (Math.floor(Date.now() / 86_400_000) - DAYS) * 86_400; // whole days of UTC
    const query = { tenant_id: this.#tenant.id, start_time };
    const [models] = await Promise.all([
      this.#api.get("/usage", { ...query, bucket_width: "all", group_by: "model" }),
      ...this.#cards.map((one) => one.load()),
    ]);
    const columns = ["Model", ...["Requests", "Prompt", "Cached", "Generated", "Cost (micro)"].map((title) => ({ title, number: true }))];
    const rows = models.data.map((row) => ({
      cells: [row.model, ...[row.requests, row.prompt_tokens, row.cached_tokens, row.completion_tokens, row.cost_micro].map(count)],
    }));
    show(this.#models, table(columns, rows, "Nothing was used yet."));
  }

  async tick() {
    if (!may("view")) return this.#budgets.load().then(() => NOT_SEEN);
    const [engine] = await Promise.all([this.#api.get("/engine"), this.#budgets.load(), this.#streams.load(), this.#webhooks.tick()]);
    return engine;
  }

  #showTitle() {
    const { id, name, disabled_at, conversation_days: days } = this.#tenant;
    const toggle = disabled_at === null
      ? button("Disable", () => this.#disable(true), "danger")
      : button("Enable", () => this.#disable(false), "strong");
    const kept = element("input", { name: "days", type: "number", min: 0, max: 36500, value: days, placeholder: "default" });
    const submit = (event) => {
      event.preventDefault();
      this.#keep(kept.value === "" ? null : kept.valueAsNumber);
    };
    this.#title.replaceChildren(
      element("h2", {}, name),
      element("code", {}, id),
      element(
        "form",
        { id: "conversation-days", onsubmit: submit },
        element("label", {}, "Days that conversations are kept (0: none are)", kept),
        element("button", { type: "submit", class: "plain" }, "Set"),
      ),
      element("span", { class: "actions" }, toggle, may("owner") ? button("Delete", () => this.#delete(), "danger") : null),
    );
  }

  async #keep(conversation_days) {
    this.#tenant = await this.#api.patch(`/tenants/${this.#tenant.id}`, { conversation_days });
    this.#showTitle();
    await this.#onChange();
  }

  async #delete() {
    const { id, name } = this.#tenant;
    const text = "Its conversations, responses, files, batches, adapters and limits are gone then, its keys end. The ledger stays.";
    if (!(await confirmed(`Delete ${name} for good?`, text, "Delete it"))) return;
    await this.#api.delete(`/tenants/${id}`);
    location.hash = "";
    await this.#onChange();
  }

  async #disable(disabled) {
    const { id, name } = this.#tenant;
    const sure = !disabled || (await confirmed(`Disable ${name}?`, "All its keys are shut out and what runs under them ends.", "Disable it"));
    if (!sure) return;
    this.#tenant = await this.#api.patch(`/tenants/${id}`, { disabled });
    this.#showTitle();
    this.#onChange();
  }

  #showProjects(projects) {
    const name = element("input", { name: "name", placeholder: "New project", required: true, maxlength: 200, "aria-label": "Name of a new project" });
    const said = element("span", { class: "said", role: "status" });
    const submit = async (event) => {
      event.preventDefault();
      try {
        await this.#api.post(`/tenants/${this.#tenant.id}/projects`, { name: name.value });
        this.#onChange(true);
      } catch (error) {
        said.dataset.kind = "error";
        said.textContent = error.message;
      }
    };
    const rows = projects.map((project) => ({ cells: [project.name, element("code", {}, project.id)] }));
    show(
      this.#projects,
      table(["Name", "Id"], rows, ""),
      element(
        "form",
        { id: "new-project", onsubmit: submit },
        element("div", { class: "form-actions" }, name, element("button", { type: "submit", class: "plain" }, "Create"), said),
      ),
    );
  }
}
