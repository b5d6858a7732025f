// The live view: one feed of samples, a second each; hands them to its parts and plays the last moments slowly.
import { ask, events, keyOf } from "./api.js";
import { Blocks } from "./blocks.js";
import { el, icon, iconButton, toast } from "./dom.js";
import { Experts } from "./figures.js";
import { News } from "./news.js";
import { Rooms } from "./rooms.js";
import { Tail } from "./tail.js";
import { Timeline } from "./timeline.js";

const AGAIN_MS = 2000;
const REPLAY_MS = 1000; // a window, of 200 ms, takes so long
const GAP_S = 3; // between samples: nobody looked in between
const still = matchMedia("(prefers-reduced-motion: reduce)");

const number = (n) => n.toLocaleString("en");

export class Live {
  /** deps: {place, onError(error)} */
  constructor(deps) {
    this.deps = deps;
    this.feed = null;
    this.sample = null;
    this.build();
  }

  build() {
    this.facts = el("dl", { class: "facts" });
    this.status = el("p", { class: "live-status", role: "status" }, "Connecting …");
    this.rooms = new Rooms({ kill: (worker) => this.kill(worker) });
    this.timeline = new Timeline();
    this.experts = new Experts();
    this.blocks = new Blocks();
    this.news = new News();
    this.tail = new Tail();
    this.pause = iconButton("pause", "Pause the replay", () => this.setPaused(!this.paused), { "aria-pressed": "false" });
    const card = (title, note, ...parts) => el("section", { class: "card" }, el("div", { class: "card-head" }, el("h2", {}, title), el("p", { class: "muted" }, note)), parts);
    this.deps.place.append(el("div", { class: "cards" }, this.status, this.facts, this.tail.node,
      card("Rooms", "who does what, and where micro-batches are", this.rooms.node),
      el("div", { class: "live-timeline" }, this.pause, card("The last 200 ms", "played five times slower, a second behind", this.timeline.node)),
      el("div", { class: "card-pair" },
        card("Experts", "rows of each expert, by block; recent ones count most", this.experts.node),
        el("div", { class: "card-stack" },
          card("Blocks", "how long a micro-batch is in each, mean of the last second", this.blocks.node),
          card("Recoveries", "with how long requests waited", this.news.node)))));
  }

  /** An answer of the chat, as it comes. */
  showAnswer(message, running) {
    this.tail.show(message, running);
  }

  /** The view is shown, or hidden: then nothing is asked for. */
  show(shown) {
    if (shown && !this.feed) this.run();
    if (!shown) this.feed?.abort();
    if (!shown) this.feed = null;
  }

  async run() {
    const feed = new AbortController();
    this.feed = feed;
    while (this.feed === feed) {
      try {
        for await (const event of events("live", { signal: feed.signal })) if (event.data) this.take(event.data);
      } catch (e) {
        if (this.feed !== feed) return;
        this.say(e.status ? e.message : "The feed broke off; trying again …");
        this.deps.onError(e);
        if (e.status === 401) this.feed = null; // asked for again when the view is shown again
      }
      await new Promise((done) => setTimeout(done, AGAIN_MS));
    }
  }

  say(text) {
    if (this.status.textContent !== text) this.status.textContent = text;
  }

  // ---- a sample ----

  take(sample) {
    const last = this.sample;
    sample.came = performance.now();
    sample.seconds = last ? (sample.came - last.came) / 1000 : null;
    const gap = sample.seconds > GAP_S, before = gap ? null : last; // rates are of the last second
    this.sample = sample;
    this.say(!sample.serving ? "Workers are missing: requests wait." : sample.recovering ? "Recovering: a lost worker is made good, requests wait for a moment." : "Serving");
    this.status.classList.toggle("busy", sample.recovering || !sample.serving);
    this.showFacts(sample, before);
    this.rooms.take(sample, before);
    this.blocks.take(sample, before);
    this.experts.take(sample, last);
    this.news.take(sample, last, gap);
    if (this.paused) return;
    this.timeline.take(sample);
    this.rooms.takeWindow(sample);
    this.play();
  }

  showFacts(s, before) {
    const rate = before ? Math.max(0, s.tokens[1] - before.tokens[1]) / s.seconds : null;
    const rows = [
      ["Schedule", s.lanes > 1 ? `${s.schedule}, ${s.lanes} batches` : s.schedule],
      ["Requests", `${s.running} running, ${s.waiting} waiting`],
      ["Tokens", rate === null ? "…" : `${rate < 10 ? rate.toFixed(1) : number(Math.round(rate))} a second`],
      ["KV pages", `${number(s.kv_pages[0])} of ${number(s.kv_pages[1])}`],
    ];
    this.facts.replaceChildren(...rows.map(([name, value]) => el("div", {}, el("dt", {}, name), el("dd", {}, value))));
  }

  // ---- the replay ----

  setPaused(paused) {
    this.paused = paused;
    this.pause.setAttribute("aria-pressed", String(paused));
    this.pause.replaceChildren(icon(paused ? "play" : "pause"));
  }

  /** Moves through the window that was taken last. */
  play() {
    const sample = this.sample;
    const frame = (now) => {
      if (this.sample !== sample || !this.feed) return;
      const share = still.matches ? 1 : Math.min(1, (now - sample.came) / REPLAY_MS);
      this.timeline.moveTo(share);
      this.rooms.moveTo(share * sample.window_us, now);
      if (share < 1) requestAnimationFrame(frame);
    };
    requestAnimationFrame(frame);
  }

  async kill(worker) {
    if (!keyOf("admin")) {
      toast("Ending a worker takes the admin key (the key button; serve --admin-key-file).");
      return;
    }
    try {
      await ask(`admin/workers/${worker}/kill`, { method: "POST", key: "admin" });
    } catch (e) {
      toast(e.status === 404 ? "This server was started without --admin-key-file." : e.message);
    }
  }
}
