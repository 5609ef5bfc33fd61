/** The engines of all hosts: what each does, and buttons that take it out of service and back. */

import { button, card, confirmed, count, element, redraw, table, time } from "./elements.js";

const number = (title) => ({ title, number: true });

export function fleetCard(api) {
  const node = card("Fleet");

  async function drain(engine) {
    const text = "It gets no new requests. Those that run move to other engines, or end there if no other serves the model.";
    if (!(await confirmed(`Drain ${engine.id}?`, text, "Drain it"))) return;
    await tell(engine, "drain");
  }

  async function tell(engine, what) {
    await api.post(`/fleet/${encodeURIComponent(engine.id)}/${what}`);
    await load();
  }

  function action(engine) {
    if (engine.state === "ready") return button("Drain", () => drain(engine), "danger");
    if (engine.state === "drained") return button("Undrain", () => tell(engine, "undrain"));
    return null;
  }

  async function load() {
    const { data } = await api.get("/fleet");
    const columns = ["Engine", "Model", "State", number("Running"), number("Waiting"), number("At most"), "Version", "Since", ""];
    const rows = data.map((engine) => ({
      props: { "data-engine": engine.id, "data-state": engine.state },
      cells: [
        element("code", {}, engine.id),
        engine.model,
        engine.state,
        count(engine.running),
        count(engine.waiting),
        count(engine.capacity),
        engine.version,
        time(engine.started_at),
        element("div", { class: "actions" }, action(engine)),
      ],
    }));
    redraw(node, node.firstElementChild, table(columns, rows, "No engine is registered."));
  }

  return { node, load };
}
