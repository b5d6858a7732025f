// The panel of settings: the system prompt of this conversation, tools, and how tokens are drawn. An empty field is
// not sent: the model's own default holds.
import { byId, el, iconButton } from "./dom.js";
import { setSetting, setting } from "./store.js";
import { ToolsField } from "./tools.js";

// As in docs/api.md: field, name, limits, what it does.
const NUMBERS = [
  { field: "temperature", name: "Temperature", min: 0, max: 2, step: 0.1, help: "0 takes the likeliest token" },
  { field: "top_p", name: "Top p", min: 0, max: 1, step: 0.01, help: "the smallest set that reaches this probability" },
  { field: "top_k", name: "Top k", min: 0, max: 4294967295, step: 1, help: "so many likeliest tokens; 0 is off" },
  { field: "min_p", name: "Min p", min: 0, max: 1, step: 0.01, help: "drops tokens below this share of the likeliest" },
  { field: "presence_penalty", name: "Presence penalty", min: -2, max: 2, step: 0.1, help: "of tokens that were said" },
  { field: "frequency_penalty", name: "Frequency penalty", min: -2, max: 2, step: 0.1, help: "of tokens, by how often they were said" },
  { field: "repetition_penalty", name: "Repetition penalty", min: 0, max: 100, step: 0.05, help: "over prompt and answer; 1 is off" },
  { field: "seed", name: "Seed", min: Number.MIN_SAFE_INTEGER, max: Number.MAX_SAFE_INTEGER, step: 1, help: "the same seed draws the same tokens" },
  { field: "max_tokens", name: "Longest answer", min: 1, max: 4294967295, step: 1, help: "tokens; else all that the context leaves" },
];

const MOST_STOPS = 16;

export class Settings {
  /** deps: {setSystem(text), toolsChanged()} */
  constructor(deps) {
    this.deps = deps;
    this.panel = byId("settings");
    this.values = setting("sampling", {});
    this.openers = [];
    this.build();
  }

  build() {
    const close = iconButton("close", "Close settings", () => this.toggle(false));
    this.system = el("textarea", { id: "system-prompt", rows: "4", placeholder: "None" });
    this.system.addEventListener("input", () => this.deps.setSystem(this.system.value));
    this.tools = new ToolsField(() => this.deps.toolsChanged());
    this.drawing = el("div", {}, el("div", { class: "fields" }, NUMBERS.map((n) => this.number(n))), this.stops(), this.variables());
    this.panel.append(
      el("div", { class: "panel-head" }, el("h2", {}, "Settings"), close),
      el("label", { for: "system-prompt" }, "System prompt"), this.system,
      el("p", { class: "help" }, "What the model is told before this conversation."),
      this.tools.node, el("h3", {}, "Sampling"), this.drawing,
      el("button", { type: "button", class: "plain", onclick: () => this.reset() }, "Back to the model's defaults"));
    this.panel.addEventListener("keydown", (e) => { if (e.key === "Escape") this.toggle(false); });
  }

  keep(name, value) {
    if (value === null) delete this.values[name];
    else this.values[name] = value;
    setSetting("sampling", this.values);
  }

  number({ field, name, min, max, step, help }) {
    const input = el("input", { id: `s-${field}`, type: "number", min, max, step: step < 1 ? "any" : "1", placeholder: "default", "aria-describedby": `h-${field}`, inputmode: "decimal" });
    input.value = this.values[field] ?? "";
    input.addEventListener("input", () => {
      const fine = input.value !== "" && input.checkValidity();
      input.setAttribute("aria-invalid", String(!input.checkValidity()));
      this.keep(field, fine ? Number(input.value) : null);
    });
    return el("div", { class: "field" }, el("label", { for: `s-${field}` }, name), input, el("p", { class: "help", id: `h-${field}` }, help));
  }

  stops() {
    const area = el("textarea", { id: "s-stop", rows: "2", placeholder: "None", "aria-describedby": "h-stop" });
    area.value = (this.values.stop ?? []).join("\n");
    area.addEventListener("input", () => {
      const list = area.value.split("\n").filter((s) => s).slice(0, MOST_STOPS);
      this.keep("stop", list.length ? list : null);
    });
    return el("div", { class: "field wide" }, el("label", { for: "s-stop" }, "Stop strings"), area, el("p", { class: "help", id: "h-stop" }, `one a line, ${MOST_STOPS} at most`));
  }

  variables() {
    const area = el("textarea", { id: "s-variables", rows: "2", placeholder: '{"enable_thinking": false}', spellcheck: "false", "aria-describedby": "h-variables" });
    area.value = this.values.chat_template_kwargs ? JSON.stringify(this.values.chat_template_kwargs) : "";
    area.addEventListener("input", () => {
      const value = objectOf(area.value);
      area.setAttribute("aria-invalid", String(value === undefined));
      this.keep("chat_template_kwargs", value ?? null);
    });
    return el("div", { class: "field wide" }, el("label", { for: "s-variables" }, "Template variables"), area, el("p", { class: "help", id: "h-variables" }, "an object in JSON, for the model's chat template"));
  }

  reset() {
    this.values = {};
    setSetting("sampling", {});
    for (const input of this.drawing.querySelectorAll("input, textarea")) {
      input.value = "";
      input.setAttribute("aria-invalid", "false");
    }
  }

  /** Fields of a request. */
  request() {
    const { tools } = this.tools;
    return tools.length ? { ...this.values, tools } : { ...this.values };
  }

  /** Whether what is set can be sent; shows what cannot. */
  ready() {
    if (!this.tools.fault) return true;
    this.openTools();
    return false;
  }

  openTools() {
    this.toggle(true);
    this.tools.say();
    this.tools.area.focus();
  }

  showSystem(text) {
    this.system.value = text;
  }

  /** A button that opens and closes the panel. */
  addOpener(button) {
    this.openers.push(button);
    button.addEventListener("click", () => this.toggle(this.panel.hidden));
  }

  toggle(open) {
    const from = this.openers.find((b) => b.offsetParent !== null);
    this.panel.hidden = !open;
    document.body.classList.toggle("with-settings", open);
    for (const button of this.openers) button.setAttribute("aria-expanded", String(open));
    if (open) this.system.focus();
    else from?.focus();
  }
}

/** An object, null of an empty text, undefined of anything else. */
function objectOf(text) {
  if (!text.trim()) return null;
  try {
    const value = JSON.parse(text);
    return value && typeof value === "object" && !Array.isArray(value) ? value : undefined;
  } catch {
    return undefined;
  }
}
