/** What was used over any time, by whom and of what: as a chart, in numbers, and as CSV. */

import { download } from "../js/elements.js";
import { chart } from "./chart.js";
import { button, card, count, element } from "./elements.js";

const DAY_S = 86_400;
const HOUR_S = 3_600;
const DAYS = 30;
const BY_HOUR_UP_TO = 3 * DAY_S;
const MOST_SHOWN = 7; // what stands out; the rest is one
const MOST_PAGES = 10;
const CSV_FIELDS = ["requests", "prompt_tokens", "cached_tokens", "completion_tokens", "cost_micro"];
/** How each figure is read off sums, in parts if it has any. */
const FIGURES = {
  tokens: ["Tokens", { "Prompt tokens": (row) => row.prompt_tokens, "Generated tokens": (row) => row.completion_tokens }],
  requests: ["Requests", { Requests: (row) => row.requests }],
  cost: ["Cost (micro)", { "Cost (micro)": (row) => row.cost_micro }],
  cached: ["Cached share (%)", { "Cached share (%)": (row) => row.cached_tokens, of: (row) => row.prompt_tokens }],
};

/**
 * @param {string} [tenantId] all tenants' without it
 * @param {object[]} [projects] of the tenant
 */
export function usageCard(api, tenantId, projects = []) {
  const node = card("Usage");
  const figure = choice("figure", Object.entries(FIGURES).map(([value, [title]]) => [value, title]));
  const groups = tenantId ? ["model", "project", "key"] : ["tenant", "model"];
  const by = choice("by", [["", "nothing"], ...groups.map((name) => [name, name])]);
  const from = element("input", { type: "date", name: "from", required: true, onchange: load });
  const to = element("input", { type: "date", name: "to", required: true, onchange: load });
  const plot = element("div", { class: "plot" });
  const names = new Map(projects.map(({ id, name }) => [id, name]));
  let shown = null;
  let drawn = 0; // for which width
  node.append(
    element(
      "div",
      { class: "fields" },
      [["Figure", figure], ["By", by], ["From", from], ["Up to", to]].map(([title, field]) => element("label", {}, title, field)),
    ),
    plot,
    element("div", { class: "form-actions" }, button("Save as CSV", save)),
  );
  new ResizeObserver(() => plot.clientWidth !== drawn && draw()).observe(plot);

  function choice(name, options) {
    return element("select", { name, onchange: load }, options.map(([value, title]) => element("option", { value }, title)));
  }

  /** Whole days of UTC. */
  function span() {
    const today = Math.floor(Date.now() / 1000 / DAY_S) * DAY_S;
    if (!from.value) from.value = dateOf(today - (DAYS - 1) * DAY_S);
    if (!to.value) to.value = dateOf(today);
    const start = Date.parse(from.value) / 1000;
    return [start, Math.max(Date.parse(to.value) / 1000, start) + DAY_S];
  }

  async function load() {
    const [start_time, end_time] = span();
    const wanted = `${figure.value} ${by.value} ${start_time} ${end_time}`;
    shown = { ...shown, wanted };
    const step = end_time - start_time <= BY_HOUR_UP_TO ? HOUR_S : DAY_S;
    const query = { tenant_id: tenantId, start_time, end_time, bucket_width: step === HOUR_S ? "1h" : "1d", group_by: by.value };
    const rows = [];
    for (let after, pages = 0; after !== null && pages < MOST_PAGES; pages += 1) {
      const page = await api.get("/usage", { ...query, after });
      rows.push(...page.data);
      after = page.next;
    }
    if (by.value === "key") {
      for (const key of (await api.get(`/tenants/${tenantId}/keys`, { limit: 1000 })).data) names.set(key.id, `${key.name} (${key.public_id})`);
    }
    if (shown.wanted !== wanted) return; // more was chosen meanwhile
    shown = { wanted, rows, start_time, end_time, step };
    draw();
  }

  const nameOf = (row) => (by.value === "tenant" ? row.tenant_name : names.get(row[`${by.value}_id`])) ?? row[by.value] ?? row[`${by.value}_id`] ?? "";

  function draw() {
    if (!shown?.rows || !plot.clientWidth) return;
    drawn = plot.clientWidth;
    const { rows, start_time, end_time, step } = shown;
    const times = Array.from({ length: Math.ceil((end_time - start_time) / step) }, (_, index) => start_time + index * step);
    const series = seriesOf(rows, times, step, FIGURES[figure.value][1], by.value ? nameOf : null);
    const sum = (name) => count(rows.reduce((total, row) => total + row[name], 0));
    const label = `Usage of ${times.length} ${step === HOUR_S ? "hours" : "days"}: ${sum("requests")} requests, ${sum("prompt_tokens")} prompt tokens, ${sum("completion_tokens")} generated tokens`;
    plot.replaceChildren(chart({ series, times, label, width: plot.clientWidth, isShare: figure.value === "cached" }));
  }

  function save() {
    const lines = (shown?.rows ?? []).map((row) => [new Date(row.start_time * 1000).toISOString(), nameOf(row), ...CSV_FIELDS.map((name) => row[name])]);
    const table = [["start", by.value || "all", ...CSV_FIELDS], ...lines];
    download("usage.csv", "text/csv", table.map((cells) => cells.map(csvCell).join(",") + "\r\n").join(""));
  }

  return { node, load };
}

/** The series of a figure, those with the most first: of each group, or of the figure's parts. */
function seriesOf(rows, times, step, parts, nameOf) {
  const place = (row) => Math.floor((row.start_time - times[0]) / step);
  const { of, ...own } = parts;
  const found = new Map();
  const empty = (name) => ({ name, values: times.map(() => 0), whole: times.map(() => 0) });
  if (!nameOf) for (const name of Object.keys(own)) found.set(name, empty(name));
  for (const row of rows) {
    for (const [part, read] of Object.entries(own)) {
      const name = nameOf ? nameOf(row) : part;
      if (!found.has(name)) found.set(name, empty(name));
      const at = place(row);
      if (at in times) found.get(name).values[at] += read(row);
      if (at in times && of) found.get(name).whole[at] += of(row);
    }
  }
  const total = ({ values }) => values.reduce((sum, value) => sum + value, 0);
  const all = [...found.values()];
  if (nameOf) all.sort((a, b) => total(b) - total(a));
  const kept = all.slice(0, MOST_SHOWN);
  const rest = all.slice(MOST_SHOWN);
  if (rest.length) {
    const others = empty(`${rest.length} others`);
    for (const { values, whole } of rest) times.forEach((_, at) => ((others.values[at] += values[at]), (others.whole[at] += whole[at])));
    kept.push(others);
  }
  if (of) for (const one of kept) one.values = one.values.map((value, at) => (one.whole[at] ? Math.round((1000 * value) / one.whole[at]) / 10 : 0));
  return kept;
}

const dateOf = (seconds) => new Date(seconds * 1000).toISOString().slice(0, 10);

/** Spreadsheets would take some texts for formulas. */
function csvCell(value) {
  const text = String(value);
  const plain = typeof value === "string" && /^[=+\-@\t\r]/.test(text) ? `'${text}` : text;
  return /[",\r\n]/.test(plain) ? `"${plain.replaceAll('"', '""')}"` : plain;
}
