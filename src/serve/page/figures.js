// A picture of the live view: how often each expert is chosen.
import { el } from "./dom.js";

const FADE = 0.85; // of what was counted a second ago
const CELL_PX = 14;

const rgb = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();

/** Rows of experts by block, as shades of one colour. */
export class Experts {
  constructor() {
    this.canvas = el("canvas", { class: "heat", role: "img", tabindex: "0" });
    this.words = el("p", { class: "figure-words" });
    this.node = el("div", {}, this.canvas, this.words);
    this.canvas.addEventListener("pointermove", (e) => this.point(e));
    this.canvas.addEventListener("pointerleave", () => { this.at = null; this.say(); });
    this.canvas.addEventListener("keydown", (e) => this.walk(e));
    new ResizeObserver(() => { if (this.recent) this.draw(); }).observe(this.node);
  }

  take(sample, before) {
    const old = before?.experts;
    this.blocks = sample.moe_layers;
    this.total = sample.experts;
    this.recent = sample.experts.map((row, b) => row.map((n, e) => {
      const now = Math.max(0, n - (old?.[b]?.[e] ?? 0));
      return old ? FADE * (this.recent?.[b]?.[e] ?? 0) + now : now;
    }));
    this.draw();
    this.say();
  }

  draw() {
    const rows = this.recent.length, columns = this.recent[0]?.length ?? 0;
    this.canvas.hidden = rows === 0;
    if (!rows) return;
    const width = this.canvas.parentElement.clientWidth, height = Math.min(rows * CELL_PX, 420), scale = devicePixelRatio;
    this.canvas.style.height = `${height}px`;
    this.canvas.width = Math.round(width * scale);
    this.canvas.height = Math.round(height * scale);
    const pen = this.canvas.getContext("2d"), most = Math.max(1, ...this.recent.flat());
    const w = this.canvas.width / columns, h = this.canvas.height / rows, gap = w > 6 && h > 6 ? scale : 0;
    pen.fillStyle = rgb("--accent");
    this.recent.forEach((row, b) => row.forEach((n, e) => {
      pen.globalAlpha = 0.06 + 0.94 * Math.sqrt(n / most);
      pen.fillRect(e * w, b * h, w - gap, h - gap);
    }));
  }

  point(e) {
    const box = this.canvas.getBoundingClientRect();
    const clamp = (share, n) => Math.max(0, Math.min(n - 1, Math.floor(share * n)));
    this.at = [clamp((e.clientY - box.top) / box.height, this.total.length), clamp((e.clientX - box.left) / box.width, this.total[0].length)];
    this.say();
  }

  walk(e) {
    const step = { ArrowUp: [-1, 0], ArrowDown: [1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1] }[e.key];
    if (!step || !this.total?.length) return;
    e.preventDefault();
    const [b, x] = this.at ?? [0, 0];
    this.at = [Math.max(0, Math.min(this.total.length - 1, b + step[0])), Math.max(0, Math.min(this.total[0].length - 1, x + step[1]))];
    this.say();
  }

  say() {
    if (!this.total?.length) {
      this.words.textContent = "This model has no routed blocks.";
      return;
    }
    const [b, e] = this.at ?? this.busiest();
    const text = `Block ${this.blocks[b]}, expert ${e}: ${this.total[b][e].toLocaleString("en")} rows so far${this.at ? "" : ", the most lately"}`;
    this.words.textContent = text;
    this.canvas.setAttribute("aria-label", `Rows of ${this.total[0].length} experts in ${this.total.length} blocks. ${text}. Arrow keys go from one to the next.`);
  }

  busiest() {
    let best = [0, 0];
    this.recent.forEach((row, b) => row.forEach((n, e) => { if (n > this.recent[best[0]][best[1]]) best = [b, e]; }));
    return best;
  }
}
