/** Who was refused in the last week and why: those with the most trouble come first. */

import { card, count, element, redraw, table, time } from "./elements.js";

const MOST_SHOWN = 50;
/** What to do about the usual codes. */
const MENDS = {
  insufficient_quota: "The month's budget is spent: raise it, or wait for the next month.",
  rate_limit_exceeded: "More requests or tokens than its rate: raise the limit, or send fewer.",
  context_length_exceeded: "Longer than the model's context: shorten it.",
  model_not_found: "No such model: an alias of the key can name one.",
  invalid_api_key: "The key has ended or was revoked.",
};

/** @param {string} [tenantId] all tenants' without it */
export function refusalsCard(api, tenantId) {
  const node = card("Refused in the last 7 days");

  async function load() {
    const { data } = await api.get("/refusals", { tenant_id: tenantId, limit: MOST_SHOWN });
    const rows = data.map((one) => ({
      props: { "data-refusal": `${one.key_id} ${one.code}` },
      cells: [
        element("a", { href: `#tenant=${one.tenant_id}` }, one.tenant_name ?? one.tenant_id),
        one.key_name ?? one.key_id,
        element("code", {}, one.code),
        MENDS[one.code] ?? "",
        count(one.times),
        time(one.last_at),
      ],
    }));
    redraw(node, node.firstElementChild, table(["Tenant", "Key", "Why", "What helps", { title: "Times", number: true }, "Last"], rows, "Nobody was refused."));
  }

  return { node, load };
}
