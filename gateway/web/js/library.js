/** The list of the conversations that are kept: search, rename, pin, export, import, delete. */
import { button, download } from "./elements.js";
import { asJson, asMarkdown, imported } from "./files.js";
import { NotKept } from "./kept.js";

const SEARCH_AFTER_MS = 200;
const DAY_MS = 86_400_000;
const byId = (id) => document.getElementById(id);

export class Library {
  #root = byId("library");
  #list = byId("library-list");
  #search = byId("library-search");
  #dialog = byId("conversation-dialog");
  #kept;
  #actions;
  #rows = [];
  #hasMore = false;
  #shown = null; // the id of the conversation on the page
  #edited = null; // the row in the dialog
  #typing = null;

  /** @param {{onOpen: (conversation) => void, onDeleted: (id: string) => void}} actions */
  constructor(kept, actions) {
    this.#kept = kept;
    this.#actions = actions;
    const wide = matchMedia("(min-width: 64rem)");
    this.#toggle(wide.matches && localStorage.getItem("sluice.library") !== "shut");
    byId("library-toggle").addEventListener("click", () => {
      this.#toggle(this.#root.hidden);
      localStorage.setItem("sluice.library", this.#root.hidden ? "shut" : "open");
      if (!this.#root.hidden) this.#search.focus();
    });
    this.#root.addEventListener("keydown", ({ key }) => {
      if (key !== "Escape" || wide.matches) return;
      this.#toggle(false);
      byId("library-toggle").focus();
    });
    this.#list.addEventListener("click", ({ target }) => {
      if (target.closest("a") && !wide.matches) this.#toggle(false);
    });
    this.#search.addEventListener("input", () => {
      clearTimeout(this.#typing);
      this.#typing = setTimeout(() => this.refresh(), SEARCH_AFTER_MS);
    });
    byId("conversation-form").addEventListener("submit", ({ submitter }) => {
      if (submitter?.id !== "conversation-close") this.#change({ title: byId("conversation-title").value.trim() });
    });
    byId("conversation-pin").addEventListener("click", () => this.#change({ pinned: this.#edited.metadata.pinned ? undefined : "yes" }));
    byId("conversation-markdown").addEventListener("click", () => this.#export("md", "text/markdown", asMarkdown));
    byId("conversation-json").addEventListener("click", () => this.#export("json", "application/json", asJson));
    byId("conversation-delete").addEventListener("click", ({ target }) => {
      if (target.dataset.sure) this.#delete();
      else target.textContent = target.dataset.sure = "Delete for good";
    });
    byId("library-import").addEventListener("change", ({ target }) => this.#import(target));
  }

  /** Nothing is kept for a reader whose key may not, or who has not signed in. */
  enable(isOn) {
    this.#kept.isOn = isOn;
    byId("library-off").hidden = isOn;
    byId("library-on").hidden = !isOn;
    this.refresh();
  }

  /** The conversation with this id is the one on the page. */
  mark(id) {
    this.#shown = id;
    for (const link of this.#list.querySelectorAll("a")) setCurrent(link, link.dataset.id === id);
  }

  async refresh(after = undefined) {
    if (!this.#kept.isOn) return this.#list.replaceChildren();
    const search = this.#search.value.trim();
    await this.#guarded(async () => {
      const page = await this.#kept.list(search, after);
      if (search !== this.#search.value.trim()) return; // more was typed meanwhile
      this.#rows = after ? [...this.#rows, ...page.data] : page.data;
      this.#hasMore = page.has_more;
      this.#draw();
    });
  }

  #toggle(isOpen) {
    this.#root.hidden = !isOpen;
    byId("library-toggle").setAttribute("aria-expanded", String(isOpen));
  }

  #draw() {
    const groups = Map.groupBy(this.#rows, (row) => (row.metadata.pinned ? "Pinned" : age(row.used_at * 1000)));
    const pinned = groups.get("Pinned");
    groups.delete("Pinned");
    const parts = [...(pinned ? [["Pinned", pinned]] : []), ...groups];
    this.#list.replaceChildren(
      ...parts.flatMap(([name, rows]) => {
        const heading = document.createElement("h3");
        heading.textContent = name;
        const list = document.createElement("ul");
        list.append(...rows.map((row) => this.#row(row)));
        return [heading, list];
      }),
    );
    if (!this.#rows.length) this.#list.append(Object.assign(document.createElement("p"), { textContent: this.#search.value ? "Nothing found." : "What you ask is kept here." }));
    if (this.#hasMore) this.#list.append(button("Show more", () => this.refresh(this.#rows.at(-1).id)));
  }

  #row(row) {
    const item = document.createElement("li");
    const link = document.createElement("a");
    link.href = `#chat=${row.id}`;
    link.dataset.id = row.id;
    link.dir = "auto";
    link.textContent = row.metadata.title || "Untitled";
    setCurrent(link, row.id === this.#shown);
    const more = button("⋯", () => this.#edit(row));
    more.setAttribute("aria-label", `More about ${link.textContent}`);
    item.append(link, more);
    return item;
  }

  #edit(row) {
    this.#edited = row;
    byId("conversation-title").value = row.metadata.title ?? "";
    byId("conversation-pin").textContent = row.metadata.pinned ? "Unpin" : "Pin";
    byId("conversation-delete").textContent = "Delete";
    delete byId("conversation-delete").dataset.sure;
    this.#dialog.showModal();
  }

  async #change(fields) {
    const metadata = JSON.parse(JSON.stringify({ ...this.#edited.metadata, ...fields }));
    const { id } = this.#edited;
    this.#dialog.close();
    await this.#guarded(() => this.#kept.change(id, metadata));
    await this.refresh();
  }

  async #delete() {
    const { id } = this.#edited;
    this.#dialog.close();
    await this.#guarded(async () => {
      await this.#kept.delete(id);
      this.#actions.onDeleted(id);
    });
    await this.refresh();
  }

  #export(ending, type, write) {
    const { id } = this.#edited;
    this.#guarded(async () => {
      const conversation = await this.#kept.open(id);
      const name = (conversation.metadata.title ?? "").replace(/[^\p{L}\p{N} _-]+/gu, "").slice(0, 60).trim();
      download(`${name || "conversation"}.${ending}`, type, write(conversation));
    });
  }

  #import(field) {
    const [file] = field.files;
    field.value = "";
    if (!file) return;
    this.#guarded(async () => {
      const found = imported(await file.text());
      for (const [place, conversation] of found.slice(1).entries()) {
        this.say(`Importing ${place + 1} of ${found.length}`);
        await this.#kept.save(conversation);
      }
      if (found.length) this.#actions.onOpen(found[0]);
    });
  }

  async #guarded(work) {
    const trouble = byId("library-trouble");
    try {
      await work();
      trouble.hidden = true;
    } catch (error) {
      if (!(error instanceof NotKept)) throw error;
      this.say(error.message);
    }
  }

  say(words) {
    byId("library-trouble").textContent = words;
    byId("library-trouble").hidden = false;
  }
}

function setCurrent(link, isCurrent) {
  if (isCurrent) link.setAttribute("aria-current", "page");
  else link.removeAttribute("aria-current");
}

function age(time) {
  const days = (new Date().setHours(0, 0, 0, 0) - time) / DAY_MS;
  if (days <= 0) return "Today";
  if (days <= 1) return "Yesterday";
  if (days <= 7) return "The last 7 days";
  if (days <= 30) return "The last 30 days";
  return new Date(time).toLocaleDateString("en", { month: "long", year: "numeric" });
}
