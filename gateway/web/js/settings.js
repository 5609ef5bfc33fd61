/**
 * What the reader has set for the answers to come: kept in this tab, and as presets in this browser
 * until somebody signs out.
 */
import { store, stored } from "./elements.js";
import { schemaFault, toolsFault, toolsOf } from "./schema_check.js";

const CURRENT = "sluice.settings";
const PRESETS = "sluice.presets";
const NUMBERS = ["temperature", "top_p", "max_tokens", "seed", "presence_penalty", "frequency_penalty"];
const byId = (id) => document.getElementById(id);

export class Settings {
  #dialog = byId("settings-dialog");
  #form = byId("settings-form");
  #presets = byId("presets");
  #schema = byId("setting-schema");
  #tools = byId("setting-tools");
  #values = saved(sessionStorage, CURRENT);

  constructor() {
    byId("settings").addEventListener("click", () => this.open());
    this.#form.addEventListener("input", () => this.#check());
    this.#form.addEventListener("submit", (event) => {
      event.preventDefault();
      if (!this.#check()) return this.#form.querySelector("[aria-invalid=true]").focus();
      this.#use(this.#read());
      this.#dialog.close();
    });
    byId("settings-reset").addEventListener("click", () => {
      this.#write({});
      this.#check();
    });
    byId("settings-cancel").addEventListener("click", () => this.#dialog.close());
    byId("preset-save").addEventListener("click", () => this.#savePreset());
    byId("preset-delete").addEventListener("click", () => this.#deletePreset());
    this.#presets.addEventListener("change", () => {
      this.#write(saved(localStorage, PRESETS)[this.#presets.value] ?? {});
      byId("preset-name").value = this.#presets.value;
      this.#check();
    });
    addEventListener("signed-out", () => localStorage.removeItem(PRESETS));
    this.#mark();
  }

  open() {
    this.#write(this.#values);
    this.#listPresets();
    this.#check();
    this.#dialog.showModal();
  }

  /** The system message, as a list of none or one. */
  get messages() {
    return this.#values.system ? [{ role: "system", content: this.#values.system }] : [];
  }

  /** The other fields of a request. */
  get fields() {
    const { format, schema, tools, stop, logprobs, ...values } = this.#values;
    const fields = Object.fromEntries(NUMBERS.filter((name) => name in values).map((name) => [name, values[name]]));
    if (stop) fields.stop = stop.split("\n");
    if (logprobs) Object.assign(fields, { logprobs: true, top_logprobs: 5 });
    if (tools) fields.tools = toolsOf(tools);
    if (format === "json_object") fields.response_format = { type: format };
    if (format === "json_schema") {
      fields.response_format = { type: format, json_schema: { name: "answer", schema: JSON.parse(schema), strict: true } };
    }
    return fields;
  }

  #use(values) {
    this.#values = values;
    store(CURRENT, values);
    this.#mark();
  }

  /** Whether anything is set shows on the button. */
  #mark() {
    const isSet = Object.keys(this.#values).length > 0;
    byId("settings").classList.toggle("is-set", isSet);
    byId("settings").setAttribute("aria-label", isSet ? "Settings of the answers (changed)" : "Settings of the answers");
  }

  #check() {
    const isSchema = this.#form.elements.format.value === "json_schema";
    byId("setting-schema-row").hidden = !isSchema;
    const isGood = this.#say("schema-fault", this.#schema, isSchema ? schemaFault(this.#schema.value) : "", isSchema && "The schema is well formed.");
    const tools = this.#tools.value.trim();
    return this.#say("tools-fault", this.#tools, tools ? toolsFault(tools) : "", tools && "The tools are well formed.") && isGood;
  }

  #say(id, field, fault, good) {
    byId(id).textContent = fault || good || "";
    byId(id).dataset.state = fault ? "bad" : "good";
    field.setAttribute("aria-invalid", String(Boolean(fault)));
    return !fault;
  }

  #read() {
    const { elements } = this.#form;
    const values = {};
    for (const name of NUMBERS) if (elements[name].value !== "") values[name] = Number(elements[name].value);
    for (const name of ["system", "stop", "tools"]) if (elements[name].value.trim()) values[name] = elements[name].value;
    if (elements.format.value) values.format = elements.format.value;
    if (values.format === "json_schema") values.schema = elements.schema.value;
    if (elements.logprobs.checked) values.logprobs = true;
    return values;
  }

  #write(values) {
    const { elements } = this.#form;
    for (const name of [...NUMBERS, "system", "stop", "tools", "format"]) elements[name].value = values[name] ?? "";
    elements.schema.value = values.schema ?? '{\n  "type": "object",\n  "properties": {},\n  "required": [],\n  "additionalProperties": false\n}';
    elements.logprobs.checked = Boolean(values.logprobs);
  }

  #listPresets() {
    const names = Object.keys(saved(localStorage, PRESETS)).sort();
    this.#presets.replaceChildren(new Option("Presets", ""), ...names.map((name) => new Option(name)));
  }

  #savePreset() {
    const name = byId("preset-name").value.trim();
    if (!name || !this.#form.reportValidity() || !this.#check()) return byId("preset-name").focus();
    localStorage.setItem(PRESETS, JSON.stringify({ ...saved(localStorage, PRESETS), [name]: this.#read() }));
    this.#listPresets();
    this.#presets.value = name;
  }

  #deletePreset() {
    const { [this.#presets.value]: gone, ...others } = saved(localStorage, PRESETS);
    localStorage.setItem(PRESETS, JSON.stringify(others));
    this.#listPresets();
  }
}

/** An object that was stored. */
function saved(storage, name) {
  const found = stored(name, storage);
  return found !== null && typeof found === "object" && !Array.isArray(found) ? found : {};
}
