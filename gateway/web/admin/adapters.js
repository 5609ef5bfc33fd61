/** A tenant's own adapters of the model: loaded from a folder on the server, and unloaded. */

import { attempted, button, card, confirmed, element, redraw, table, time } from "./elements.js";

const LOADED_WITHIN_MS = 300_000; // from a disk that may be slow

export function adaptersCard(api, tenantId) {
  const node = card("Adapters");
  const list = element("div");
  const said = element("span", { class: "said", role: "status" });
  const submit = element("button", { type: "submit", class: "plain strong" }, "Load");
  const name = element("input", { name: "name", required: true, maxlength: 200, placeholder: "its model id" });
  const path = element("input", { name: "path", required: true, maxlength: 1000, placeholder: "in adapters_dir" });
  node.append(
    list,
    element(
      "form",
      { id: "new-adapter", onsubmit: loadOne },
      element("div", { class: "fields" }, element("label", {}, "Name", name), element("label", {}, "Folder", path)),
      element("div", { class: "form-actions" }, submit, said),
    ),
  );

  async function loadOne(event) {
    event.preventDefault();
    submit.disabled = true;
    await attempt(async () => {
      said.textContent = "Loading …";
      const body = { name: name.value.trim(), path: path.value.trim() };
      const made = await api.post(`/tenants/${tenantId}/adapters`, body, LOADED_WITHIN_MS);
      name.value = path.value = "";
      said.textContent = `${made.name} can be used as a model now.`;
    });
    submit.disabled = false;
  }

  async function unload(adapter) {
    const text = "New requests for it are refused; those that run go on to their end.";
    if (await confirmed(`Unload ${adapter.name}?`, text, "Unload it")) {
      await attempt(async () => {
        await api.delete(`/tenants/${tenantId}/adapters/${adapter.id}`);
        said.textContent = `${adapter.name} was unloaded.`;
      });
    }
  }

  async function attempt(work) {
    await attempted(said, work);
    await load();
  }

  async function load() {
    const { data } = await api.get(`/tenants/${tenantId}/adapters`, { limit: 1000 });
    const rows = data.map((adapter) => ({
      props: { "data-adapter": adapter.id },
      cells: [
        adapter.name,
        adapter.parent,
        String(adapter.rank),
        element("code", {}, adapter.path),
        adapter.base_model ?? "",
        time(adapter.created_at),
        element("div", { class: "actions" }, button("Unload", () => unload(adapter), "danger")),
      ],
    }));
    const columns = ["Name", "Of", { title: "Rank", number: true }, "Folder", "Made for", "Loaded", ""];
    redraw(list, table(columns, rows, "No adapters yet."));
  }

  return { node, load };
}
