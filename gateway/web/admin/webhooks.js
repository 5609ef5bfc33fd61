/** Where events are sent: of one tenant, or of all and of the engines; and how the last ones went. */

import { attempted, button, card, confirmed, element, redraw, reveal, table, time } from "./elements.js";

export const EVENTS = [
  ...["budget.threshold_reached", "key.expiring", "engine.down", "engine.up"],
  ...["batch.completed", "batch.failed", "batch.expired", "batch.cancelled"],
];
const SHOWN = 20; // deliveries, the newest
const GRACE_S = 24 * 3600;

/** @param {string} [tenantId] the deployment's without it */
export function webhooksCard(api, tenantId) {
  const node = card("Webhooks");
  const list = element("div");
  const deliveries = element("div", { role: "region", "aria-label": "Deliveries" });
  const said = element("span", { class: "said", role: "status" });
  let chosen = null; // the webhook whose deliveries are shown
  node.append(list, deliveries, form());

  function form() {
    const url = element("input", { name: "url", type: "url", required: true, maxlength: 2048, placeholder: "https://…" });
    const boxes = EVENTS.map((name) => element("label", {}, name, element("input", { type: "checkbox", name: "event", value: name })));
    return element(
      "form",
      { id: "new-webhook", onsubmit: create },
      element("div", { class: "fields" }, element("label", {}, "URL", url)),
      element("details", {}, element("summary", {}, "Only some events"), element("div", { class: "fields" }, boxes)),
      element("div", { class: "form-actions" }, element("button", { type: "submit", class: "plain strong" }, "Create a webhook"), said),
    );
  }

  async function create(event) {
    event.preventDefault();
    const form = event.target;
    const events = [...form.querySelectorAll("[name=event]:checked")].map((box) => box.value);
    await attempt(async () => {
      const made = await api.post("/webhooks", { url: form.elements.url.value.trim(), events, tenant_id: tenantId ?? null });
      form.reset();
      reveal(made.secret, "secret");
    });
  }

  async function test(webhook) {
    chosen = webhook;
    await attempt(() => api.post(`/webhooks/${webhook.id}/test`));
  }

  async function rotate(webhook) {
    const text = "The old one signs too for a day.";
    if (!(await confirmed(`Replace the secret of ${webhook.url}?`, text, "Replace it"))) return;
    await attempt(async () => {
      const changed = await api.post(`/webhooks/${webhook.id}/rotate`, { grace_seconds: GRACE_S });
      reveal(changed.secret, "secret");
    });
  }

  async function disable(webhook, disabled) {
    await attempt(() => api.patch(`/webhooks/${webhook.id}`, { disabled }));
  }

  async function remove(webhook) {
    const text = "Events that wait for it are not sent any more.";
    if (!(await confirmed(`Delete ${webhook.url}?`, text, "Delete it"))) return;
    if (chosen?.id === webhook.id) chosen = null;
    await attempt(() => api.delete(`/webhooks/${webhook.id}`));
  }

  async function attempt(work) {
    await attempted(said, work);
    await load();
  }

  const sent = async (webhook) => (await api.get(`/webhooks/${webhook.id}/deliveries`, { limit: SHOWN })).data;

  async function load() {
    const webhooks = [];
    for (let after; after !== null; ) {
      const page = await api.get("/webhooks", { tenant_id: tenantId, limit: 1000, after });
      webhooks.push(...page.data.filter((one) => one.tenant_id === (tenantId ?? null)));
      after = page.next;
    }
    const failures = await Promise.all(webhooks.map(async (one) => lastFailure(await sent(one))));
    const rows = webhooks.map((webhook, index) => {
      const isOn = webhook.disabled_at === null;
      return {
        props: { "data-webhook": webhook.id, class: isOn ? null : "ended" },
        cells: [
          element("code", {}, webhook.url),
          webhook.events.join(", ") || "all",
          isOn ? "on" : `disabled ${time(webhook.disabled_at)}`,
          failures[index],
          element(
            "div",
            { class: "actions" },
            button("Test", () => test(webhook)),
            button("Deliveries", () => choose(webhook), "look"),
            button("Replace secret", () => rotate(webhook)),
            isOn ? button("Disable", () => disable(webhook, true)) : button("Enable", () => disable(webhook, false)),
            button("Delete", () => remove(webhook), "danger"),
          ),
        ],
      };
    });
    redraw(list, table(["URL", "Events", "State", "Last failure", ""], rows, "Nobody is told."));
    await tick();
  }

  async function choose(webhook) {
    chosen = chosen?.id === webhook.id ? null : webhook;
    await tick();
  }

  /** The deliveries that are shown change by the second. */
  async function tick() {
    const shown = chosen;
    if (shown === null) return redraw(deliveries);
    const made = await sent(shown);
    if (chosen !== shown) return; // another one was chosen meanwhile
    const rows = made.map((one) => ({
      props: { "data-event": one.event_id },
      cells: [
        element("code", {}, one.event_id),
        one.type,
        one.state === "pending" && one.num_attempts ? `again ${time(one.due_at)}` : one.state,
        String(one.num_attempts),
        one.last_answer ?? "",
        time(one.created_at),
      ],
    }));
    const columns = ["Event", "Type", "State", { title: "Attempts", number: true }, "Last answer", "Made"];
    redraw(deliveries, element("h4", {}, `The last events for ${shown.url}`), table(columns, rows, "None in the last week."));
  }

  return { node, load, tick };
}

function lastFailure(deliveries) {
  const failed = deliveries.find((one) => one.state === "failed" || (one.state === "pending" && one.num_attempts));
  return failed ? `${time(failed.created_at)}: ${failed.last_answer}` : "";
}
