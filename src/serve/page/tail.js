// The end of the answer that the chat is waiting for, small: it goes on beside the rooms of whoever makes it.
import { el } from "./dom.js";

const MOST_CHARS = 400;

/** What there is of an answer, last of all what comes now. */
function textOf({ reasoning, content, calls }) {
  const called = calls.map((c) => `${c.name}(${c.arguments})`).join("\n");
  return [reasoning, content, called].filter(Boolean).join("\n").slice(-MOST_CHARS);
}

function stateOf(message, running) {
  if (message.error) return ["failed", message.error];
  if (!running) return ["done", message.finish === "stopped" ? "stopped" : "complete"];
  return message.note === "recovering" ? ["recovering", "waits: a worker was lost, and it goes on by itself"] : ["running", "comes"];
}

export class Tail {
  constructor() {
    this.state = el("span", { role: "status" });
    this.count = el("span", { class: "muted" });
    this.text = el("p", { class: "tail-text" });
    this.node = el("section", { class: "card tail", "aria-label": "Answer of the chat", hidden: true },
      el("p", { class: "tail-head" }, el("strong", {}, "Answer of the chat"), " ", this.state, " ", this.count), el("div", { class: "tail-window" }, this.text));
  }

  /** message: an answer of the chat, as far as it is there. */
  show(message, running) {
    const [state, words] = stateOf(message, running), { tokens } = message.stats;
    this.node.hidden = false;
    this.node.dataset.state = state;
    if (this.state.textContent !== words) this.state.textContent = words;
    this.count.textContent = tokens ? `${tokens} ${tokens === 1 ? "token" : "tokens"}` : "";
    this.text.textContent = textOf(message);
  }
}
