// One message of a conversation as it is shown, with what can be done about it.
import { Calls } from "./calls.js";
import { copyBy, el, iconButton } from "./dom.js";
import { renderInto } from "./markdown.js";

/** What a model thought and what it said: the thoughts of some stand in their answers, between <think> and </think>. */
function partsOf(message) {
  const found = /^\s*<think>([\s\S]*?)(?:<\/think>|$)([\s\S]*)$/.exec(message.content);
  if (!found) return { reasoning: message.reasoning ?? "", content: message.content };
  return { reasoning: (message.reasoning ?? "") + found[1].trim(), content: found[2].trimStart() };
}

export function durationText(ms) {
  return ms < 1000 ? `${Math.round(ms)} ms` : `${(ms / 1000).toFixed(1)} s`;
}

function statsOf(message) {
  const { tokens, rate, firstMs } = message.stats ?? {};
  const parts = [];
  if (tokens) parts.push(`${tokens} ${tokens === 1 ? "token" : "tokens"}`);
  if (rate) parts.push(`${rate.toFixed(rate < 10 ? 2 : 1)} tokens/s`);
  if (firstMs !== undefined) parts.push(`first after ${durationText(firstMs)}`);
  if (message.finish === "length") parts.push("cut at the length limit");
  if (message.finish === "stopped") parts.push("stopped");
  return parts;
}

function copyButton(message) {
  const button = iconButton("copy", "Copy message", () => copyBy(button, partsOf(message).content));
  return button;
}

// ---- what the user said ----

/** `edit(text)` sends it again, changed; what followed is gone then. */
export function userMessage(message, edit) {
  const text = el("div", { class: "bubble" }, message.content);
  const actions = el("div", { class: "actions" }, copyButton(message));
  const node = el("article", { class: "message user", "aria-label": "You" }, text, actions);
  const change = iconButton("edit", "Edit and send again", () => {
    const form = editor(message.content, edit, () => {
      form.replaceWith(text, actions);
      change.focus();
    });
    text.replaceWith(form);
    actions.remove();
    form.querySelector("textarea").focus();
  });
  actions.append(change);
  return node;
}

function editor(content, done, cancel) {
  const area = el("textarea", { "aria-label": "Your message", rows: String(Math.min(12, content.split("\n").length + 1)) });
  area.value = content;
  const send = () => { if (area.value.trim()) done(area.value.trim()); };
  area.addEventListener("keydown", (e) => {
    if (e.key === "Escape") cancel();
    if (e.key === "Enter" && !e.shiftKey && !e.isComposing) {
      e.preventDefault();
      send();
    }
  });
  const form = el("form", { class: "editor" }, area, el("div", { class: "editor-buttons" },
    el("button", { type: "button", class: "plain", onclick: cancel }, "Cancel"),
    el("button", { type: "submit", class: "primary" }, "Send")));
  form.addEventListener("submit", (e) => { e.preventDefault(); send(); });
  return form;
}

// ---- what the model said ----

/** How sure the model was of a token, in five steps. */
const sureness = (chance) => (chance > 0.9 ? 5 : chance > 0.6 ? 4 : chance > 0.3 ? 3 : chance > 0.1 ? 2 : 1);
const percent = (chance) => (chance >= 0.0995 ? `${Math.round(100 * chance)} %` : `${(100 * chance).toPrecision(2)} %`);
const visible = (text) => text.replace(/\n/g, "⏎").replace(/\t/g, "⇥").replace(/^ +| +$/g, (s) => "␣".repeat(s.length)) || "(nothing)";

/** The answer token by token; arrow keys go from one to the next, and beside is what else was likely. */
function chancesView(chances) {
  const detail = el("div", { class: "chance-detail", "aria-live": "polite" }, el("p", { class: "muted" }, "Choose a token to see what else was likely."));
  const show = (i) => {
    const bars = chances[i].others.map((o) => el("li", {}, el("code", {}, visible(o.text)),
      el("meter", { min: "0", max: "1", value: String(o.chance), "aria-label": percent(o.chance) }), el("span", {}, percent(o.chance))));
    detail.replaceChildren(el("p", {}, el("code", {}, visible(chances[i].text)), ` had ${percent(chances[i].chance)}`), el("ol", {}, bars));
    tokens.forEach((t, k) => { t.tabIndex = k === i ? 0 : -1; t.setAttribute("aria-pressed", String(k === i)); });
  };
  // no button: that would not break where lines do
  const tokens = chances.map((c, i) => el("span", {
    role: "button", class: `token sure-${sureness(c.chance)}`, tabindex: i ? "-1" : "0", "aria-pressed": "false",
    title: percent(c.chance), onclick: () => show(i), onfocus: () => show(i),
  }, c.text));
  const walk = (e) => {
    const step = { ArrowRight: 1, ArrowLeft: -1 }[e.key];
    const at = tokens.indexOf(e.target);
    if (!step || !tokens[at + step]) return;
    e.preventDefault();
    tokens[at + step].focus();
  };
  const legend = el("p", { class: "chance-legend", "aria-hidden": "true" }, "less likely ", [1, 2, 3, 4, 5].map((n) => el("span", { class: `token sure-${n}` }, " ")), " more");
  return el("div", { class: "chances" }, el("div", { class: "tokens", role: "group", "aria-label": "Tokens of the answer", onkeydown: walk }, tokens), legend, detail);
}

/** An answer; update() shows what there is of it now. actions: {retry, chances, isLast, keep, send}; the last three
 *  are for the results of what it called (calls.js). */
export class AnswerMessage {
  constructor(message, actions) {
    this.message = message;
    this.actions = actions;
    this.reasoning = el("div", { class: "prose" });
    this.summary = el("summary", {}, "Reasoning");
    this.fold = el("details", { class: "reasoning", hidden: true }, this.summary, this.reasoning);
    this.body = el("div", { class: "prose" });
    this.calls = new Calls(message, { ...actions, left: () => this.results.focus() });
    this.note = el("p", { class: "note", hidden: true });
    this.stats = el("p", { class: "stats" });
    this.retry = iconButton("retry", "Answer again", () => actions.retry());
    this.chances = iconButton("chance", "Token probabilities", () => this.toggleChances(), { "aria-pressed": "false" });
    this.copy = copyButton(message);
    this.results = iconButton("edit", "Edit the results and go on from there", () => this.calls.edit(true));
    this.bar = el("div", { class: "actions" }, this.copy, this.results, this.retry, this.chances, this.stats);
    this.node = el("article", { class: "message answer", "aria-label": "Model" }, this.fold, this.body, this.calls.node, this.note, this.bar);
  }

  update(running) {
    const { message } = this;
    const { reasoning, content } = partsOf(message);
    const called = message.calls?.length ?? 0;
    const waits = running && !content && !reasoning && !called;
    this.node.classList.toggle("running", running);
    this.node.classList.toggle("waits", waits);
    this.fold.hidden = !reasoning;
    this.summary.textContent = running && !content && !called ? "Reasoning …" : "Reasoning";
    if (reasoning) renderInto(this.reasoning, reasoning);
    renderInto(this.body, content);
    this.calls.update(running);
    this.showNote(message);
    this.showStats(running);
    this.copy.hidden = Boolean(called && !content);
    this.results.hidden = running || !this.calls.given();
    this.retry.hidden = running;
    this.chances.hidden = running || !message.ids?.length;
  }

  showStats(running) {
    const parts = statsOf(this.message);
    if (this.calls.waits()) parts.push(`waits for the ${this.message.calls.length > 1 ? "tools’ results" : "tool’s result"}`);
    else if (!running && this.calls.broken()) parts.push("its calls may be broken and do not go back to the model");
    this.stats.textContent = parts.join(" · ");
  }

  showNote(message) {
    const recovering = message.note === "recovering";
    const text = recovering ? "A worker was lost and is being made good. This answer goes on by itself." : message.error ?? "";
    this.note.hidden = !text;
    this.note.className = `note ${recovering ? "recovering" : "failed"}`;
    if (this.note.textContent !== text) this.note.textContent = text;
  }

  async toggleChances() {
    const open = this.chances.getAttribute("aria-pressed") === "true";
    this.view?.remove();
    this.body.hidden = false;
    this.chances.setAttribute("aria-pressed", String(!open));
    if (open) return;
    this.chances.disabled = true;
    try {
      this.view = chancesView(await this.actions.chances());
      this.body.hidden = true;
      this.body.after(this.view);
    } catch {
      this.chances.setAttribute("aria-pressed", "false");
    } finally {
      this.chances.disabled = false;
    }
  }
}
