/** The MCP servers whose tools a tenant's responses may use. */

import { attempted, button, card, confirmed, element, redraw, table, time } from "./elements.js";

export function mcpCard(api, tenantId) {
  const node = card("MCP servers");
  const list = element("div");
  const said = element("span", { class: "said", role: "status" });
  const url = element("input", { name: "url", type: "url", required: true, maxlength: 2048, placeholder: "https://…/mcp" });
  const isPrivate = element("input", { name: "allow_private", type: "checkbox" });
  node.append(
    list,
    element(
      "form",
      { id: "new-mcp-server", onsubmit: allow },
      element(
        "div",
        { class: "fields" },
        element("label", {}, "URL", url),
        element("label", {}, "May be at a private address", isPrivate),
      ),
      element("div", { class: "form-actions" }, element("button", { type: "submit", class: "plain strong" }, "Allow"), said),
    ),
  );

  async function allow(event) {
    event.preventDefault();
    await attempt(async () => {
      const body = { url: url.value.trim(), allow_private: isPrivate.checked };
      const made = await api.post(`/tenants/${tenantId}/mcp_servers`, body);
      url.value = "";
      isPrivate.checked = false;
      said.textContent = `Responses may use ${made.url} now.`;
    });
  }

  async function deny(server) {
    const text = "Calls that are under way go on to their end.";
    if (await confirmed(`Deny ${server.url}?`, text, "Deny it")) {
      await attempt(async () => {
        await api.delete(`/tenants/${tenantId}/mcp_servers/${server.id}`);
        said.textContent = `${server.url} may not be used any more.`;
      });
    }
  }

  async function attempt(work) {
    await attempted(said, work);
    await load();
  }

  async function load() {
    const { data } = await api.get(`/tenants/${tenantId}/mcp_servers`, { limit: 1000 });
    const rows = data.map((server) => ({
      props: { "data-mcp-server": server.id },
      cells: [
        element("code", {}, server.url),
        server.allow_private ? "yes" : "",
        time(server.created_at),
        element("div", { class: "actions" }, button("Deny", () => deny(server), "danger")),
      ],
    }));
    redraw(list, table(["URL", "Private address", "Allowed", ""], rows, "None is allowed."));
  }

  return { node, load };
}
