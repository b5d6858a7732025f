// What a micro-batch took in each block of the model lately, and beside it what the planner had said.
import { el } from "./dom.js";

const FAR = 3; // a prediction is drawn up to so many times the highest bar

const us = (n) => (n >= 1000 ? `${(n / 1000).toFixed(2)} ms` : `${n.toFixed(n < 10 ? 1 : 0)} µs`);
const rows = (n) => `${n.toLocaleString("en", { maximumFractionDigits: 1 })} ${n === 1 ? "row" : "rows"}`;
const sum = (list) => list.reduce((a, b) => a + b, 0);

/** What counters of blocks have grown by; one that fell is of a worker that began anew, and counts nothing. */
function grown(sample, before) {
  return sample.layers.map((now, i) => now.map((n, k) => Math.max(0, n - (before?.layers[i]?.[k] ?? 0))));
}

/** Microseconds of each block: [attention, away, kernels of its experts] of one micro-batch; null: nothing came by. Blocks
 *  without experts do not count who comes by: whoever goes through the model does. */
function timesOf(spent, moe) {
  const routed = spent.filter((_, i) => moe.has(i) && spent[i][2]);
  const through = routed.length ? sum(routed.map((l) => l[2])) / routed.length : 0;
  return spent.map(([attention, experts, flights, away], i) => {
    const n = moe.has(i) ? flights : through;
    return n ? [attention, away, experts].map((ns) => ns / n / 1000) : null;
  });
}

/** Neighbours of one kind: [first, how many, they have experts]. */
function runsOf(n, moe) {
  const runs = [];
  for (let i = 0; i < n; i++) {
    if (i && moe.has(i) === moe.has(i - 1)) runs.at(-1)[1]++;
    else runs.push([i, 1, moe.has(i)]);
  }
  return runs;
}

export class Blocks {
  constructor() {
    this.bars = el("div", { class: "bars", role: "img", tabindex: "0", "aria-label": "Time of a micro-batch in each block" });
    this.words = el("p", { class: "figure-words" });
    this.measured = el("p", { class: "figure-words" });
    this.predicted = el("p", { class: "figure-words" });
    this.node = el("div", {}, this.bars, this.words, this.measured, this.predicted);
    for (const event of ["pointermove", "pointerdown"]) this.bars.addEventListener(event, (e) => this.point(e));
    this.bars.addEventListener("pointerleave", () => { this.at = null; this.say(); });
    this.bars.addEventListener("keydown", (e) => this.walk(e));
  }

  /** before: the sample of about a second ago, or null. */
  take(sample, before) {
    const spent = grown(sample, before), moe = new Set(sample.moe_layers), times = timesOf(spent, moe);
    if (times.some((t) => t)) {
      this.times = times;
      this.draw(sample, moe);
      this.say();
      this.measured.textContent = this.measuredText(sample, spent, moe);
    } else if (!this.times) {
      this.words.textContent = "Nothing has come by so far.";
    }
    this.predicted.textContent = this.predictedText(sample, moe);
  }

  /** What was predicted, and is drawn: [microseconds, what, of blocks with experts]. Nothing where the plan is not the one that was predicted. */
  lines(sample, highest) {
    if (!sample.predicted_us || !sample.predicted_holds) return [];
    const of = (times, routed) => (times ?? []).map((time, i) => [time, ["decode", "prompts"][i], routed]);
    return [...of(sample.predicted_us, true), ...of(sample.predicted_dense_us, false)].filter(([t]) => t <= FAR * highest);
  }

  draw(sample, moe) {
    const totals = this.times.map((t) => (t ? t[0] + t[1] : 0)), highest = Math.max(...totals);
    this.shown = this.lines(sample, highest);
    const most = Math.max(highest, ...this.shown.map(([t]) => t));
    const colourOf = (name) => sample.kinds.find((k) => k[0] === name)?.[2];
    const part = (time, name) => {
      const bar = el("span", {});
      bar.style.height = `${(100 * time) / most}%`;
      bar.style.background = colourOf(name);
      return bar;
    };
    const bars = this.times.map((t, i) => el("span", { class: moe.has(i) ? "bar" : "bar dense" }, t ? [part(t[1], "expert"), part(t[0], "attention")] : null));
    const runs = runsOf(bars.length, moe);
    const lines = this.shown.map(([time, what, routed]) => {
      const line = el("span", { class: "bar-line" }, routed ? el("span", { class: "bar-name" }, `predicted, ${what}`) : null);
      line.style.bottom = `${(100 * time) / most}%`;
      for (const [first, n] of runs.filter((run) => run[2] === routed)) {
        const piece = el("span", { class: "bar-piece" });
        piece.style.left = `calc((100% + var(--gap)) * ${first / bars.length})`;
        piece.style.width = `calc((100% + var(--gap)) * ${n / bars.length} - var(--gap))`;
        line.append(piece);
      }
      return line;
    });
    this.bars.replaceChildren(...bars, ...lines);
  }

  // ---- words ----

  /** The block that is pointed at, or the slowest. */
  say() {
    if (!this.times) return;
    const total = (t) => (t ? t[0] + t[1] : 0);
    const slowest = this.times.reduce((best, t, i) => (total(t) > total(this.times[best]) ? i : best), 0);
    const i = this.at ?? slowest, t = this.times[i];
    const parts = t && (t[1] ? `attention ${us(t[0])} and away ${us(t[1])}, of that kernels of its experts ${us(t[2])}` : `attention and its own feed-forward ${us(t[0])}`);
    const text = t ? `Block ${i}: ${us(total(t))}; ${parts}${this.at === i ? "" : ". The slowest lately."}` : `Block ${i}: nothing came by`;
    if (this.words.textContent === text) return;
    this.words.textContent = text;
    this.bars.setAttribute("aria-label", `Time of a micro-batch in ${this.times.length} blocks. ${text} Arrow keys go from one to the next.`);
  }

  measuredText(sample, spent, moe) {
    const [with_, flights] = [this.times.filter((t, i) => t && moe.has(i)), sum(spent.map((l) => l[2]))];
    if (!with_.length) return "";
    const mean = sum(with_.map((t) => t[0] + t[1])) / with_.length;
    const each = sum(spent.map((l) => l[4])) / sample.top_k / flights;
    if (sample.schedule === "aep") return `Measured: ${us(mean)} a block with experts, for ${rows(each)} that travel together.`;
    return `Measured: ${us(mean)} a block with experts, with ${rows(each * sample.lanes)} at an attention worker${sample.lanes > 1 ? `, in ${sample.lanes} micro-batches` : ""}.`;
  }

  predictedText(sample, moe) {
    const [time, rows_] = [sample.predicted_us, sample.predicted_rows];
    if (!time) return "No prediction is known: --schedule auto makes one, for several workers on this machine.";
    if (!sample.predicted_holds) return `The prediction (${us(time[0])} with ${rows(rows_[0])}) was for other workers than take part now, and is not drawn.`;
    const where = (what, routed) => (this.times && !this.shown.some(([, name, of]) => name === what && of === routed) ? ", above this picture" : "");
    const dense = sample.predicted_dense_us;
    const others = dense
      ? ` with experts; for those without, ${us(dense[0])} a micro-batch that decodes${where("decode", false)}, ${us(dense[1])} one of prompts${where("prompts", false)}.`
      : ".";
    return `Predicted: ${us(time[0])} with ${rows(rows_[0])} that decode${where("decode", true)}, ${us(time[1])} with ${rows(rows_[1])} of prompts${where("prompts", true)}. One time for all blocks${others}`;
  }

  // ---- pointing ----

  point(e) {
    if (!this.times) return;
    const box = this.bars.getBoundingClientRect(), n = this.times.length;
    this.at = Math.max(0, Math.min(n - 1, Math.floor(((e.clientX - box.left) / box.width) * n)));
    this.say();
  }

  walk(e) {
    const step = { ArrowLeft: -1, ArrowRight: 1 }[e.key];
    if (!step || !this.times) return;
    e.preventDefault();
    this.at = Math.max(0, Math.min(this.times.length - 1, (this.at ?? (step > 0 ? -1 : this.times.length)) + step));
    this.say();
  }
}
