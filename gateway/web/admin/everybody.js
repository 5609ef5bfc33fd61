/** All tenants together: the engine as it is, who uses it, what was used. */

import { level } from "./chart.js";
import { card, count, element, redraw, rough, table } from "./elements.js";
import { fleetCard } from "./fleet.js";
import { budgetsCard } from "./budgets.js";
import { refusalsCard } from "./refusals.js";
import { may } from "./roles.js";
import { auditCard, streamsCard } from "./live.js";
import { usageCard } from "./usage.js";
import { webhooksCard } from "./webhooks.js";

const DAYS = 30;
const MOST_SHOWN = 50; // tenants, those with the most tokens
/** In place of what the engine does, for who may not see it. */
export const NOT_SEEN = { tenants: [] };

export class EverybodyView {
  #api;
  #engine = card("Engine");
  #load = card("Running now");
  #usage;
  #refusals;
  #totals = card(`Tenants of the last ${DAYS} days`);
  #budgets;
  #fleet;
  #streams;
  #webhooks;
  #audit;

  constructor(api) {
    this.#api = api;
    this.#budgets = budgetsCard(api);
    this.#usage = usageCard(api);
    this.#refusals = refusalsCard(api);
    this.#fleet = fleetCard(api);
    this.#streams = streamsCard(api);
    this.#webhooks = webhooksCard(api);
    this.#audit = auditCard(api);
    for (const wide of [this.#budgets, this.#refusals, this.#usage, this.#fleet, this.#streams, this.#webhooks, this.#audit]) wide.node.classList.add("wide");
  }

  get nodes() {
    const title = element("div", { class: "view-title" }, element("h2", {}, "Everybody"));
    if (!may("view")) return [title, this.#budgets.node, this.#usage.node, this.#totals];
    return [
      title,
      this.#budgets.node,
      this.#refusals.node,
      this.#usage.node,
      ...[this.#engine, this.#load, this.#totals],
      ...[this.#fleet, this.#streams, this.#webhooks, this.#audit].map((one) => one.node),
    ];
  }

  async load() {
    const start_time = (Math.floor(Date.now() / 86_400_000) - DAYS) * 86_400; // whole days of UTC
    const [tenants] = await Promise.all([
      this.#api.get("/usage", { bucket_width: "all", group_by: "tenant", start_time, order: "tokens", limit: MOST_SHOWN }),
      this.#usage.load(),
      this.tick(),
      ...(may("view") ? [this.#webhooks.load(), this.#audit.load(), this.#refusals.load()] : []),
    ]);
    show(
      this.#totals,
      table(
        ["Tenant", ...["Requests", "Prompt", "Cached", "Generated"].map(number)],
        tenants.data.map((row) => ({
          cells: [
            element("a", { href: `#tenant=${row.tenant_id}` }, row.tenant_name ?? row.tenant_id),
            ...[row.requests, row.prompt_tokens, row.cached_tokens, row.completion_tokens].map(count),
          ],
        })),
        "Nothing was used yet.",
      ),
    );
  }

  /** What changes by the second. */
  async tick() {
    if (!may("view")) return this.#budgets.load().then(() => NOT_SEEN);
    const [engine] = await Promise.all([this.#api.get("/engine"), this.#budgets.load(), this.#fleet.load(), this.#streams.load(), this.#webhooks.tick()]);
    const { stats } = engine;
    const used = stats.num_total_blocks - stats.num_free_blocks;
    show(
      this.#engine,
      element(
        "dl",
        { class: "figures" },
        figure("State", engine.ready ? "Ready" : "Away"),
        figure("Running", count(stats.num_running)),
        figure("Waiting", count(stats.num_waiting)),
        figure("Blocks in use", `${count(used)} of ${rough(stats.num_total_blocks)}`),
        figure("Prefix cache hits", percent(stats.prefix_cache_hits, stats.prefix_cache_queries)),
        figure("Preemptions", count(stats.num_preemptions)),
      ),
      level(used, stats.num_total_blocks),
    );
    const most = Math.max(1, ...engine.tenants.map((tenant) => tenant.num_running));
    show(
      this.#load,
      table(
        ["Tenant", number("Requests"), number("Generated"), ""],
        engine.tenants.map((tenant) => ({
          cells: [
            element("a", { href: `#tenant=${tenant.tenant_id}` }, tenant.name),
            count(tenant.num_running),
            count(tenant.generated_tokens),
            level(tenant.num_running, most),
          ],
        })),
        "Nobody's requests run on this server at the moment.",
      ),
    );
    return engine;
  }
}

const number = (title) => ({ title, number: true });
const percent = (part, whole) => (whole ? `${Math.round((100 * part) / whole)} %` : "–");

function figure(term, value) {
  return element("div", {}, element("dt", {}, term), element("dd", {}, value));
}

/** Replace all of a card but its title. */
export function show(section, ...content) {
  redraw(section, section.firstElementChild, ...content);
}
