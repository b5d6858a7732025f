// The tools that the model is given: a field of the settings for a list of functions in JSON, as the API takes them.
import { el } from "./dom.js";
import { setSetting, setting } from "./store.js";

const PAUSE_MS = 500; // of typing, before a fault is said
const ROWS = [3, 14]; // of the field, at least and at most

const EXAMPLE = [{
  type: "function",
  function: {
    name: "get_weather",
    description: "The weather of a city.",
    parameters: { type: "object", properties: { city: { type: "string", description: "Its name." }, days: { type: "integer" } }, required: ["city"] },
  },
}];

const isObject = (value) => typeof value === "object" && value !== null && !Array.isArray(value);
const WANTED = '{"type": "function", "function": {"name": …}}';

/** What is wrong with one tool, or null. */
function faultOf(tool, i, names) {
  const at = `Tool ${i + 1}`;
  if (!isObject(tool)) return `${at} is no object: ${WANTED} is wanted.`;
  if (tool.type !== "function") return `${at} has no "type": "function". ${WANTED} is wanted.`;
  if (!isObject(tool.function)) return `${at} has no object "function". ${WANTED} is wanted.`;
  const { name, description, parameters } = tool.function;
  if (typeof name !== "string" || !name) return `${at} has no name: "function" needs a "name".`;
  if (names.includes(name)) return `${at} has a name that is taken: ${name}.`;
  if (description !== undefined && typeof description !== "string") return `${at} (${name}): "description" is no text.`;
  if (parameters !== undefined && !isObject(parameters)) return `${at} (${name}): "parameters" is no object. A JSON Schema is wanted.`;
  return null;
}

/** {tools, fault}: a list, empty for an empty text; and what is wrong, or null. */
export function toolsOf(text) {
  if (!text.trim()) return { tools: [], fault: null };
  let tools;
  try {
    tools = JSON.parse(text);
  } catch (e) {
    return { tools: [], fault: `This is not JSON: ${e.message}.` };
  }
  if (!Array.isArray(tools)) return { tools: [], fault: "This is no list: tools stand in [ and ], also a single one." };
  const names = [];
  for (const [i, tool] of tools.entries()) {
    const fault = faultOf(tool, i, names);
    if (fault) return { tools: [], fault };
    names.push(tool.function.name);
  }
  return { tools, fault: null };
}

const countText = (tools) => (tools.length ? `${tools.length === 1 ? "One tool" : `${tools.length} tools`}: ${tools.map((t) => t.function.name).join(", ")}` : "");

export class ToolsField {
  /** changed() when there are others */
  constructor(changed) {
    this.changed = changed;
    this.area = el("textarea", { id: "s-tools", placeholder: "None", spellcheck: "false", "aria-describedby": "t-tools h-tools" });
    this.said = el("p", { class: "field-said", id: "t-tools", role: "status" });
    this.example = el("button", { type: "button", class: "link", onclick: () => this.showExample() }, "Insert an example");
    this.node = el("div", { class: "field tools-field" }, el("label", { for: "s-tools" }, "Tools"), this.area, this.said, this.example,
      el("p", { class: "help", id: "h-tools" }, "A list of functions in JSON, as in the API. This page runs none: you type what a call returns."));
    this.area.value = setting("tools", "");
    this.area.addEventListener("input", () => this.take());
    this.area.addEventListener("change", () => this.say());
    this.read();
    this.say();
  }

  read() {
    Object.assign(this, toolsOf(this.area.value));
  }

  take() {
    this.read();
    setSetting("tools", this.area.value); // also what is not right yet
    clearTimeout(this.timer);
    this.timer = setTimeout(() => this.say(), PAUSE_MS);
    this.changed();
  }

  say() {
    const { tools, fault } = this;
    this.area.setAttribute("aria-invalid", String(Boolean(fault)));
    this.said.classList.toggle("fault", Boolean(fault));
    this.said.textContent = fault ?? countText(tools);
    this.example.hidden = Boolean(this.area.value.trim());
    this.area.rows = Math.max(ROWS[0], Math.min(ROWS[1], this.area.value.split("\n").length));
  }

  showExample() {
    this.area.value = JSON.stringify(EXAMPLE, null, 2);
    this.take();
    this.say();
    this.area.focus();
  }

  names() {
    return this.tools.map((tool) => tool.function.name);
  }
}
