/** The administration page: who is chosen in the address, what is shown of them, and how fresh. */

import { ApiKey } from "../js/api_key.js";
import { installTheme } from "../js/theme.js";
import { Api, ApiError } from "./api.js";
import { element } from "./elements.js";
import { EverybodyView } from "./everybody.js";
import { TenantView } from "./tenant.js";

const TICK_MS = 2000;

const byId = (id) => document.getElementById(id);
const api = new Api();
const names = new Map();
let tenants = [];
let view = null;
let isReady = false;
let numChanges = 0;

const key = new ApiKey((text) => {
  api.use(text);
  isReady = false;
  begin();
}, "sluice.admin-key");

async function begin() {
  say("connecting", "Connecting");
  const done = await guarded(async () => {
    await loadTenants();
    isReady = true;
    await choose();
  });
  if (done) say("open", "Connected");
}

async function loadTenants() {
  tenants = (await api.get("/tenants")).data;
  names.clear();
  for (const tenant of tenants) names.set(tenant.id, tenant.name);
  showTenants([]);
}

function chosenId() {
  return new URLSearchParams(location.hash.slice(1)).get("tenant");
}

function showTenants(loads) {
  const running = new Map(loads.map((load) => [load.tenant_id, load.num_running]));
  const chosen = chosenId();
  byId("everybody").setAttribute("aria-current", chosen === null ? "page" : "false");
  byId("tenants").replaceChildren(
    ...tenants.map((tenant) =>
      element(
        "li",
        {},
        element(
          "a",
          {
            class: `tenant-link${tenant.disabled_at === null ? "" : " disabled"}`,
            href: `#tenant=${tenant.id}`,
            "aria-current": tenant.id === chosen ? "page" : null,
          },
          tenant.name,
          running.has(tenant.id)
            ? element("span", { class: "running", title: "Requests that run" }, String(running.get(tenant.id)))
            : null,
        ),
      ),
    ),
  );
}

/** Show whom the address names. */
async function choose() {
  const change = ++numChanges;
  const tenant = tenants.find(({ id }) => id === chosenId());
  let next;
  if (tenant) {
    const projects = (await api.get(`/tenants/${tenant.id}/projects`)).data;
    next = new TenantView(api, () => names, tenant, projects, (anew) => guarded(() => refresh(anew)));
  } else {
    next = new EverybodyView(api, () => names);
  }
  if (change !== numChanges) return;
  view = next;
  showTenants([]);
  byId("view").replaceChildren(...next.nodes);
  await next.load();
  if (view === next) await tick();
}

async function refresh(anew = false) {
  await loadTenants();
  if (anew) await choose();
}

async function tick() {
  const current = view;
  if (!isReady || document.hidden || current === null) return;
  const done = await guarded(async () => {
    const engine = await current.tick();
    if (current === view) showTenants(engine.tenants);
  });
  if (done) say("open", "Connected");
}

/** Run `work`; a failure is said, and a key that is no good asked for anew. */
async function guarded(work) {
  try {
    await work();
    byId("trouble").hidden = true;
    return true;
  } catch (error) {
    if (!(error instanceof ApiError)) throw error;
    if (error.status === 401 || error.status === 403) {
      isReady = false;
      say("refused", "Not admitted");
      key.ask(error.status === 403 ? "This key is not an administrator's." : error.message);
    } else {
      say("waiting", "Trouble");
      byId("trouble").textContent = error.message;
      byId("trouble").hidden = false;
    }
    return false;
  }
}

function say(state, text) {
  byId("link-state").dataset.state = state;
  byId("link-state").textContent = text;
}

byId("change-key").addEventListener("click", () => key.ask());
byId("new-tenant").addEventListener("submit", (event) => {
  event.preventDefault();
  guarded(async () => {
    const tenant = await api.post("/tenants", { name: byId("new-tenant-name").value.trim() });
    byId("new-tenant-name").value = "";
    await loadTenants();
    location.hash = `tenant=${tenant.id}`;
  });
});
addEventListener("hashchange", () => {
  if (isReady) guarded(choose);
});
// A button's own request that fails says so where all failures are said.
addEventListener("unhandledrejection", (event) => {
  if (!(event.reason instanceof ApiError)) return;
  event.preventDefault();
  guarded(() => Promise.reject(event.reason));
});
installTheme(byId("theme"));
setInterval(tick, TICK_MS);
key.start();
