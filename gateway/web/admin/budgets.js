/** What is used of limits, as bars beside them: where the most is used up comes first. */

import { level } from "./chart.js";
import { card, count, element, redraw, table } from "./elements.js";

const MOST_SHOWN = 50;
const COLUMNS = [
  ["monthly_tokens", "Tokens of the month"],
  ["monthly_cost_micro", "Cost of the month (micro)"],
  ["requests_per_minute", "Requests of the minute"],
  ["tokens_per_minute", "Tokens of the minute"],
  ["max_concurrent", "At once"],
];

export function budgetsCard(api, tenantId) {
  const node = card("Budgets");

  async function load() {
    const { data, has_more: hasMore } = await api.get("/budgets", { tenant_id: tenantId, limit: MOST_SHOWN });
    const rows = data.map((row) => ({
      props: { "data-budget": row.scope_id },
      cells: [
        element("a", { href: `#tenant=${row.tenant_id}` }, row.tenant_name),
        row.scope_kind,
        ...COLUMNS.map(([name]) => (name in row.used ? bar(name, row.used[name], row.limits[name]) : "")),
      ],
    }));
    redraw(
      node,
      node.firstElementChild,
      table(["Tenant", "Limits of", ...COLUMNS.map(([, title]) => title)], rows, "Nothing is limited."),
      ...(hasMore ? [element("p", { class: "empty" }, `The ${MOST_SHOWN} with the least left.`)] : []),
    );
  }

  return { node, load };
}

function bar(name, used, most) {
  const share = used / Math.max(most, 1);
  const state = share >= 1 ? "spent" : share >= 0.8 ? "near" : "fine";
  const words = `${count(used)} of ${count(most)}`;
  const forecast = name.startsWith("monthly") ? atMonthsEnd(used, most) : "";
  return element("div", { class: "budget", "data-state": state }, words, level(used, most), forecast && element("small", {}, forecast));
}

/** What will be used at this month's pace, if that is more than there is. */
function atMonthsEnd(used, most) {
  const now = new Date();
  const begin = Date.UTC(now.getUTCFullYear(), now.getUTCMonth());
  const end = Date.UTC(now.getUTCFullYear(), now.getUTCMonth() + 1);
  const expected = Math.round((used * (end - begin)) / Math.max(now - begin, 3_600_000));
  if (used >= most) return `used up until ${new Date(end).toISOString().slice(0, 10)}`;
  return expected > most ? `${count(expected)} by the month's end at this pace` : "";
}
