// What became of workers, and what each recovery cost, as a list of lines, the latest first.
import { el } from "./dom.js";
import { workerName } from "./rooms.js";

const MOST = 40;
const DAY_MS = 86_400_000;

const number = (n) => n.toLocaleString("en");

/** When something was that has been for so long, by the clock here. */
function timeText(agoMs) {
  const at = new Date(Date.now() - agoMs);
  return agoMs < DAY_MS / 2 ? at.toLocaleTimeString() : at.toLocaleString();
}

export class News {
  constructor() {
    this.list = el("ol", { class: "news" });
    this.node = el("div", { class: "news-place", role: "log", "aria-label": "Recoveries", tabindex: "0" }, this.list);
    this.seen = -1; // number of the last pause that was told
  }

  say(when, text) {
    if (this.none) this.none.remove();
    this.none = null;
    this.list.prepend(el("li", {}, el("time", {}, when), ` ${text}`));
    if (this.list.children.length > MOST) this.list.lastChild.remove();
  }

  /** before: the sample before this one, or null; gap: nobody looked for a while between them. */
  take(sample, before, gap) {
    this.takePauses(sample.recovery.pauses);
    if (before) this.takeCounts(sample, before, gap ? "while nobody looked" : timeText(0));
    if (this.list.children.length || this.none) return;
    const { lost } = sample.recovery;
    this.none = el("li", { class: "muted" }, lost ? `${lost} workers were lost since the server started; no request waited for that.` : "No worker was lost since the server started.");
    this.list.append(this.none);
  }

  /** Each recovery for which requests waited, also those of before: the server says how long ago they were. */
  takePauses(pauses) {
    const last = pauses.at(-1)?.[0] ?? -1;
    if (last < this.seen) this.seen = -1; // another server
    for (const [n, ago_s, waited_s, why] of pauses) {
      if (n > this.seen) this.say(timeText(1000 * ago_s), `Requests waited ${waited_s.toFixed(2)} s${why ? `: ${why}` : ""}`);
    }
    this.seen = last;
  }

  /** What has changed among workers since the last sample. */
  takeCounts(s, before, when) {
    const more = (name) => s.recovery[name] - before.recovery[name];
    const say = (text) => this.say(when, text);
    if (more("lost") > 0) say(more("lost") === 1 ? "A worker was lost" : `${more("lost")} workers were lost`);
    s.workers.forEach((w, i) => {
      const old = before.workers[i];
      if (old && w.pid > 0 && w.pid !== old.pid) say(`${workerName(w)} is process ${w.pid} now`);
      if (old && w.state !== old.state) say(`${workerName(w)} is ${w.state}`);
    });
    if (more("requeued") > 0) say(`${number(more("requeued"))} requests went on elsewhere`);
    if (more("rows_kept") > 0) say(`${number(more("rows_kept"))} rows of KV were kept`);
    if (more("rows_recomputed") > 0) say(`${number(more("rows_recomputed"))} rows were computed again`);
    if (s.plan > before.plan) say(`Plan ${s.plan} holds`);
  }
}
