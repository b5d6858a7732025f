// The chat: one conversation on the screen, the composer under it, one answer at a time.
import { announce, el, fitText, icon, iconButton, toast } from "./dom.js";
import { chancesOf, endsInCalls, newAnswer, stream } from "./answer.js";
import { AnswerMessage, userMessage } from "./message.js";
import { newConversation, saveConversation } from "./store.js";

const TITLE_CHARS = 60;
const NEAR_END_PX = 80;
const STARTS = ["Why is the sky blue?", "Explain a Mixture of Experts in three sentences.", "Write a short poem about a river lock."];

const titleOf = (text) => {
  const line = text.trim().split("\n")[0];
  return line.length > TITLE_CHARS ? `${line.slice(0, TITLE_CHARS - 1).trimEnd()}…` : line;
};

/** How an answer ended, for who does not see it. */
function endText(message) {
  if (message.finish === "stopped") return "Stopped";
  if (!endsInCalls(message)) return `The answer is complete: ${message.content}`;
  return `${message.content} The model called ${message.calls.map((call) => call.name).join(", ")} and waits for the results.`.trim();
}

export class Chat {
  /** deps: {place, model(), settings(), ready(), tools(), openTools(), system(), onChange(conversation), onError(error),
   *  onAnswer(message, running)}: settings() are fields of a request, ready() false if they are wrong, which is shown; tools() names */
  constructor(deps) {
    this.deps = deps;
    this.conversation = newConversation(deps.system());
    this.answers = new Map();
    this.running = null;
    this.build();
    this.show(this.conversation);
  }

  build() {
    this.log = el("div", { class: "log" });
    this.empty = el("div", { class: "empty" });
    this.scroller = el("div", { class: "scroller", tabindex: "0", role: "region", "aria-label": "Messages" }, this.empty, this.log);
    this.latest = el("button", { type: "button", class: "latest", hidden: true, onclick: () => this.toEnd(true) }, "↓ Latest");
    this.scroller.addEventListener("scroll", () => { this.latest.hidden = this.nearEnd(); }, { passive: true });
    this.area = el("textarea", { id: "prompt", rows: "1", placeholder: "Ask something", "aria-label": "Message", enterkeyhint: "send" });
    this.send = el("button", { type: "submit", class: "send", "aria-label": "Send" }, icon("send"));
    this.toolsButton = iconButton("tool", "", () => this.deps.openTools(), { class: "icon-button composer-tools" });
    this.form = el("form", { class: "composer" }, this.toolsButton, this.area, this.send);
    this.area.addEventListener("input", () => fitText(this.area));
    this.area.addEventListener("keydown", (e) => this.onKey(e));
    this.form.addEventListener("submit", (e) => {
      e.preventDefault();
      if (this.running) this.stop();
      else this.say(this.area.value.trim());
    });
    this.deps.place.append(this.scroller, el("div", { class: "composer-row" }, this.latest, this.form));
    this.showTools();
  }

  /** Says at the composer that the model is given tools. */
  showTools() {
    const names = this.deps.tools();
    const label = `${names.length} ${names.length === 1 ? "tool" : "tools"}: ${names.join(", ")}`;
    this.toolsButton.hidden = names.length === 0;
    this.toolsButton.title = label;
    this.toolsButton.setAttribute("aria-label", label);
    this.toolsButton.replaceChildren(icon("tool"), el("span", {}, String(names.length)));
  }

  onKey(e) {
    if (e.key !== "Enter" || e.shiftKey || e.isComposing) return;
    e.preventDefault();
    if (!this.running) this.form.requestSubmit();
  }

  // ---- what is shown ----

  show(conversation) {
    this.stop();
    this.conversation = conversation;
    this.answers.clear();
    this.log.replaceChildren();
    conversation.messages.forEach((message, i) => this.append(message, i));
    this.showEmpty();
    this.toEnd(true);
  }

  showEmpty() {
    const none = this.conversation.messages.length === 0;
    this.empty.hidden = !none;
    if (!none) return;
    const starts = STARTS.map((text) => el("button", { type: "button", class: "start", onclick: () => this.say(text) }, text));
    this.empty.replaceChildren(el("h2", {}, "What would you like to know?"), el("div", { class: "starts" }, starts));
  }

  append(message, index) {
    if (message.role === "user") {
      this.log.append(userMessage(message, (text) => this.say(text, index)));
      return;
    }
    const shown = new AnswerMessage(message, {
      retry: () => this.answer(index),
      chances: () => this.chances(message, index),
      isLast: () => this.conversation.messages.at(-1) === message,
      keep: () => this.keep(this.conversation),
      send: (results) => this.sendResults(message, results, index + 1),
    });
    this.answers.set(message, shown);
    shown.update(false);
    this.log.append(shown.node);
  }

  nearEnd() {
    const s = this.scroller;
    return s.scrollHeight - s.scrollTop - s.clientHeight < NEAR_END_PX;
  }

  toEnd(always) {
    if (always || this.nearEnd()) this.scroller.scrollTop = this.scroller.scrollHeight;
  }

  // ---- what happens ----

  /** Sends a message at the end, or in place of message `index` and all that follow it. */
  say(text, index = this.conversation.messages.length) {
    if (!text || this.running || !this.deps.ready()) return;
    const c = this.conversation;
    c.messages.length = index;
    if (!c.title) c.title = titleOf(text);
    c.messages.push({ role: "user", content: text });
    this.area.value = "";
    fitText(this.area);
    this.answer(c.messages.length);
  }

  /** Goes on behind the calls of a message with what they returned; what followed is gone then. */
  sendResults(message, results, next) {
    if (this.running || !this.deps.ready()) return;
    message.calls.forEach((call, i) => { call.result = results[i]; });
    this.answer(next);
  }

  /** Makes message `index` the model's answer to those before it. */
  async answer(index) {
    if (this.running || !this.deps.ready()) return;
    const c = this.conversation, from = document.activeElement;
    const next = !this.log.contains(from) ? from : from.matches("textarea") ? this.area : this.scroller;
    c.messages.length = index;
    const message = newAnswer();
    c.messages.push(message);
    this.show(c); // all messages anew: what was in focus is gone
    next.focus();
    await this.run(c, message, index);
  }

  async run(c, message, index) {
    const running = new AbortController();
    this.setRunning(running);
    await this.keep(c);
    let due = false;
    const shown = this.answers.get(message);
    const paint = () => {
      due = false;
      const follow = this.nearEnd();
      shown.update(this.running === running);
      this.deps.onAnswer(message, this.running === running);
      if (follow) this.toEnd(true);
    };
    const changed = () => { if (!due) { due = true; requestAnimationFrame(paint); } };
    paint();
    try {
      await stream(await this.deps.model(), c, c.messages.slice(0, index), message, this.deps.settings(), running.signal, changed);
      announce(endText(message));
    } catch (e) {
      message.error = e.message;
      announce(`The answer failed: ${e.message}`);
      this.deps.onError(e);
    }
    if (this.running === running) this.setRunning(null);
    paint();
    this.showField(shown);
    await this.keep(c);
  }

  /** Who is about to type goes on where the model waits. */
  showField(shown) {
    const idle = document.activeElement === this.area && !this.area.value;
    if (idle && shown.node.isConnected && shown.calls.waits()) shown.calls.focus();
  }

  stop() {
    this.running?.abort();
    this.setRunning(null);
  }

  setRunning(running) {
    this.running = running;
    this.send.replaceChildren(icon(running ? "stop" : "send"));
    this.send.setAttribute("aria-label", running ? "Stop" : "Send");
    this.send.classList.toggle("stops", Boolean(running));
  }

  async keep(conversation) {
    await saveConversation(conversation);
    this.deps.onChange(conversation);
  }

  async chances(message, index) {
    try {
      return await chancesOf(await this.deps.model(), this.conversation, this.conversation.messages.slice(0, index), message, this.deps.settings());
    } catch (e) {
      toast(e.message);
      throw e;
    }
  }
}
