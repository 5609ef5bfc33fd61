/** The administration page: who is chosen in the address, what is shown of them, and how fresh. */

import { ApiKey } from "../js/api_key.js";
import { installTheme } from "../js/theme.js";
import { Api, ApiError } from "./api.js";
import { element } from "./elements.js";
import { EverybodyView } from "./everybody.js";
import { setRole } from "./roles.js";
import { TenantView } from "./tenant.js";

const TICK_MS = 2000;
const PAGE = 500; // tenants

const byId = (id) => document.getElementById(id);
const api = new Api();
let tenants = []; // those that are listed
let next = null; // what to ask for those that follow with
let loads = []; // of the tenants whose requests run
let view = null;
let isAdmitted = false;
let isStale = true; // the view is not yet of whom the address names
let isTicking = false;
let isLoadingMore = false;
let numChoices = 0;

const key = new ApiKey(() => {
  isAdmitted = isStale = true; // until the server says otherwise
  setRole(key.scopes);
  say("connecting", "Connecting");
  tick();
});

async function begin() {
  await loadTenants();
  await choose();
}

async function loadTenants() {
  const search = wanted();
  const page = await api.get("/tenants", { search, limit: PAGE });
  if (search !== wanted()) return; // more was typed meanwhile
  tenants = page.data;
  next = page.next;
  byId("tenants").replaceChildren(...tenants.map(row));
  showTenants();
}

async function moreTenants() {
  const search = wanted();
  const page = await api.get("/tenants", { search, after: next, limit: PAGE });
  if (search !== wanted()) return;
  tenants.push(...page.data);
  next = page.next;
  byId("tenants").append(...page.data.map(row));
  showTenants();
}

/** Those that follow come when the end of the list is in sight. */
const ahead = new IntersectionObserver(async ([{ isIntersecting }]) => {
  if (!isIntersecting || next === null || isLoadingMore) return;
  isLoadingMore = true;
  await guarded(moreTenants);
  isLoadingMore = false;
  ahead.unobserve(byId("more-tenants")); // Observed anew, it says whether the end is still in sight.
  ahead.observe(byId("more-tenants"));
});

/** What is searched for; undefined: nothing. */
function wanted() {
  return byId("find-tenant").value.trim() || undefined;
}

function chosenId() {
  return new URLSearchParams(location.hash.slice(1)).get("tenant");
}

function row(tenant) {
  const props = {
    class: `tenant-link${tenant.disabled_at === null ? "" : " disabled"}`,
    href: `#tenant=${tenant.id}`,
    "data-tenant": tenant.id,
  };
  return element("li", {}, element("a", props, tenant.name));
}

/** Mark who is chosen and whose requests run: only these rows are touched, of thousands. */
function showTenants() {
  const list = byId("tenants");
  const link = (id) => list.querySelector(`[data-tenant="${CSS.escape(id)}"]`);
  const chosen = chosenId();
  byId("everybody").setAttribute("aria-current", chosen === null ? "page" : "false");
  for (const old of list.querySelectorAll("[aria-current]")) if (old.dataset.tenant !== chosen) old.removeAttribute("aria-current");
  if (chosen !== null) link(chosen)?.setAttribute("aria-current", "page");
  const running = new Map(loads.map((load) => [load.tenant_id, String(load.num_running)]));
  for (const old of list.querySelectorAll(".running")) if (!running.has(old.parentNode.dataset.tenant)) old.remove();
  for (const [id, count] of running) {
    const found = link(id);
    const mark = found?.querySelector(".running") ?? element("span", { class: "running", title: "Requests that run" });
    if (mark.textContent !== count) mark.textContent = count;
    if (found && !mark.isConnected) found.append(mark);
  }
  byId("more-tenants").hidden = next === null;
}

/** Show whom the address names. What is shown stays until its successor is whole. */
async function choose() {
  const choice = ++numChoices;
  isStale = true;
  showTenants();
  byId("view").setAttribute("aria-busy", "true");
  try {
    const next = await chosenView();
    await next.load();
    if (choice !== numChoices) return;
    view = next;
    isStale = false;
    byId("view").replaceChildren(...next.nodes);
  } finally {
    if (choice === numChoices) byId("view").setAttribute("aria-busy", "false");
  }
  await freshen();
}

async function chosenView() {
  const chosen = chosenId();
  const tenant = tenants.find(({ id }) => id === chosen) ?? (chosen && (await unlisted(chosen)));
  if (!tenant) return new EverybodyView(api);
  const projects = (await api.get(`/tenants/${tenant.id}/projects`, { limit: 1000 })).data;
  return new TenantView(api, tenant, projects, (anew) => guarded(() => refresh(anew)));
}

/** A tenant that is on another page of the list; null if there is none. */
async function unlisted(id) {
  try {
    return await api.get(`/tenants/${encodeURIComponent(id)}`);
  } catch (error) {
    if (error.status === 404) return null;
    throw error;
  }
}

async function refresh(anew = false) {
  await loadTenants();
  if (anew) await choose();
}

/** Bring what changes by the second up to date. */
async function freshen() {
  const current = view;
  const engine = await current.tick();
  if (current !== view) return;
  loads = engine.tenants;
  showTenants();
}

/** One at a time, however slow the server is; what failed is tried again. */
async function tick() {
  const isChoosing = byId("view").ariaBusy === "true";
  if (!isAdmitted || isTicking || isChoosing || (document.hidden && !isStale)) return;
  isTicking = true;
  try {
    const done = await guarded(isStale ? begin : freshen, "tick");
    if (done) say("open", "Connected");
    else if (isAdmitted) say("waiting", "Trouble");
  } finally {
    isTicking = false;
  }
}

/**
 * Run `work`; a failure is said, and a key that is no good asked for anew. What a reader's own deed
 * ran into stays said until the next deed: a tick only takes back what a tick has said.
 */
async function guarded(work, of = "deed") {
  const trouble = byId("trouble");
  try {
    await work();
    if (of === "deed" || trouble.dataset.of === of) trouble.hidden = true;
    return true;
  } catch (error) {
    if (!(error instanceof ApiError)) throw error;
    if (error.status === 401 || error.status === 403) {
      isAdmitted = false;
      say("refused", "Not admitted");
      key.ask(error.status === 403 ? "This key is not an administrator's." : error.message);
    } else {
      trouble.dataset.of = of;
      trouble.textContent = error.message;
      trouble.hidden = false;
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
byId("find-tenant").addEventListener("input", () => isAdmitted && guarded(loadTenants));
addEventListener("hashchange", async () => {
  if (isAdmitted && (await guarded(choose))) byId("view").scrollTop = 0;
});
// A button's own request that fails says so where all failures are said.
addEventListener("unhandledrejection", (event) => {
  if (!(event.reason instanceof ApiError)) return;
  event.preventDefault();
  guarded(() => Promise.reject(event.reason));
});
ahead.observe(byId("more-tenants"));
byId("more-tenants").addEventListener("click", () => guarded(moreTenants));
installTheme(byId("theme"));
setInterval(tick, TICK_MS);
key.start();
