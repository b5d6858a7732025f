// Calls of tools in an answer: each a fold with its arguments, live while they stream, and under it a field for what
// the tool returned. This page runs no tool: the reader says what came of it.
import { endsInCalls } from "./answer.js";
import { codeBlock, el, fitText, icon } from "./dom.js";

const INDENT = "  ", DEEPEST = 40; // of indentation
const MOST_PRETTY_CHARS = 50000;
const BRIEF_CHARS = 200;

/** JSON in lines, as far as it has come; values stay as they are written. Anything else stays as it is. */
export function pretty(text) {
  const isFit = text.length <= MOST_PRETTY_CHARS && /^\s*[[{]/.test(text);
  const tokens = isFit ? text.match(/"(?:[^"\\]|\\[^])*"?|[{[]\s*[}\]]|[{}[\],:]|[^\s"{}[\],:]+/g) : null;
  if (!tokens) return text;
  let depth = 0, lines = "";
  const line = () => `\n${INDENT.repeat(Math.max(0, Math.min(depth, DEEPEST)))}`;
  for (const token of tokens) {
    if (token === "}" || token === "]") { depth--; lines += line(); }
    lines += token === ":" ? ": " : token.length > 1 && "{[".includes(token[0]) ? token.replace(/\s/g, "") : token;
    if (token === "{" || token === "[") depth++;
    if ("{[,".includes(token)) lines += line();
  }
  return lines;
}

const isJson = (text) => {
  try {
    JSON.parse(text);
    return true;
  } catch {
    return false;
  }
};

const brief = (text) => {
  const line = text.replace(/\s+/g, " ").trim();
  return line.length > BRIEF_CHARS ? `${line.slice(0, BRIEF_CHARS)}…` : line;
};

/** One call of an answer. `told`: which one it is, in words. */
class Call {
  constructor(call, told, id, helpId, onEnter) {
    this.call = call;
    this.arguments = codeBlock("arguments", `Arguments of ${told}`, "Copy arguments");
    this.result = codeBlock("result", `Result of ${told}`, "Copy result");
    this.brief = el("span", { class: "call-brief" });
    const summary = el("summary", {}, icon("tool"), el("code", { class: "call-name" }, call.name), this.brief);
    this.fold = el("details", { class: "call" }, summary, this.arguments, this.result);
    this.area = el("textarea", { id, rows: "1", placeholder: "What the tool returned", spellcheck: "false", "aria-describedby": helpId });
    this.field = el("div", { class: "call-field" }, el("label", { for: id }, `Result of ${told}`), this.area);
    this.node = el("div", { role: "group", "aria-label": `Call of ${told}` }, this.fold, this.field);
    this.area.addEventListener("input", () => fitText(this.area));
    this.area.addEventListener("keydown", (e) => {
      if (e.key !== "Enter" || e.shiftKey || e.isComposing) return;
      e.preventDefault();
      onEnter();
    });
    this.restore();
  }

  /** The field says what is kept. */
  restore() {
    this.area.value = this.call.result;
  }

  /** running: more of it may come; asks: the field is there; given: it has a result. */
  update(running, asks, given) {
    const text = this.call.arguments, open = running || asks;
    if (this.text !== text || this.running !== running) this.showArguments(running || isJson(text) ? pretty(text) : text);
    if (this.open !== open) this.fold.open = open; // in between the reader folds as they like
    Object.assign(this, { text, running, open });
    this.field.hidden = !asks;
    this.result.hidden = !given || asks;
    this.result.querySelector("code").textContent = this.call.result || "(nothing)";
    if (asks) fitText(this.area);
  }

  showArguments(text) {
    this.arguments.querySelector("code").textContent = text;
    this.brief.textContent = brief(this.call.arguments);
  }
}

let forms = 0; // so far: their fields have ids of their own

/** The calls of an answer. deps: {isLast(), keep(), send(results), left()}: whether nothing follows; keeps what was
 *  typed so far; asks the model again with these; the fields are gone again. */
export class Calls {
  constructor(message, deps) {
    this.message = message;
    this.deps = deps;
    this.shown = [];
    this.edited = false;
    this.id = `calls-${++forms}`;
    this.list = el("div", { class: "calls-list" });
    this.help = el("p", { class: "help", id: `${this.id}-help` });
    this.cancel = el("button", { type: "button", class: "plain", onclick: () => this.edit(false) }, "Cancel");
    this.button = el("button", { type: "submit", class: "primary" });
    this.foot = el("div", { class: "calls-foot" }, this.help, this.cancel, this.button);
    this.node = el("form", { class: "calls", hidden: true }, this.list, this.foot);
    this.node.addEventListener("submit", (e) => { e.preventDefault(); this.send(); });
    this.node.addEventListener("input", () => { if (!this.edited) this.take(); });
    this.node.addEventListener("change", () => { if (!this.edited) deps.keep(); });
    this.node.addEventListener("keydown", (e) => { if (e.key === "Escape" && this.edited) this.edit(false); });
  }

  /** Whether the model waits for what the reader types. */
  waits() {
    return endsInCalls(this.message) && this.deps.isLast();
  }

  /** Whether their results were sent. */
  given() {
    return endsInCalls(this.message) && !this.deps.isLast();
  }

  /** Whether the answer ended for another reason than the calls that it has. */
  broken() {
    return this.message.calls?.length > 0 && !endsInCalls(this.message);
  }

  update(running) {
    const { calls = [] } = this.message, given = this.given();
    const asks = !running && (this.waits() || this.edited);
    calls.slice(this.shown.length).forEach((call) => this.add(call));
    this.shown.forEach((call) => call.update(running, asks, given));
    this.node.hidden = calls.length === 0;
    this.foot.hidden = !asks;
    this.cancel.hidden = !this.edited;
    this.button.textContent = calls.length > 1 ? "Send results" : "Send result";
    this.help.textContent = calls.length > 1 ? "Enter goes to the next empty field, then sends; Shift and Enter begins a new line." : "Enter sends, Shift and Enter begins a new line.";
  }

  add(call) {
    const at = this.shown.length, told = at ? `${call.name}, call ${at + 1}` : call.name;
    const next = () => {
      const empty = this.shown.find((other, i) => i !== at && !other.area.value);
      if (empty) empty.area.focus();
      else this.send();
    };
    this.shown.push(new Call(call, told, `${this.id}-${at}`, this.help.id, next));
    this.list.append(this.shown.at(-1).node);
  }

  take() {
    for (const { call, area } of this.shown) call.result = area.value;
  }

  send() {
    this.deps.send(this.shown.map(({ area }) => area.value));
  }

  /** Results that were sent can be changed, and what followed is made again; or they stay after all. */
  edit(edited) {
    if (edited === this.edited) return;
    this.edited = edited;
    this.shown.forEach((call) => call.restore());
    this.update(false);
    if (edited) this.focus();
    else this.deps.left();
  }

  focus() {
    this.shown[0].area.focus();
  }
}
