// The picture of a plan: each schedule's own front, time a token against what is made most of, both by decades. Points
// are radio buttons: arrow keys go along a schedule and from one to another.
import { el, svg } from "./dom.js";

const MARGIN = { left: 64, right: 18, top: 16, bottom: 46 };
const REACH_PX = 36; // of the pointer
const MARK = 5;

// A mark of each schedule, around 0, so that no one needs its colour.
const SHAPES = {
  ep: "M-5 0a5 5 0 1 0 10 0a5 5 0 1 0 -10 0",
  eps: "M-4.6 -4.6h9.2v9.2h-9.2z",
  hybrid: "M0 -6.2L6.2 0L0 6.2L-6.2 0z",
  pipeline: "M-2 -5.5h4v3.500h3.500v4h-3.500v3.500h-4v-3.500h-3.500v-4h3.500z",
  dep: "M0 -6L5.800 4.500H-5.800z",
  pingpong: "M0 6L5.800 -4.500H-5.800z",
  findep: "M0 -6.300L6 -1.900L3.700 5.200H-3.700L-6 -1.900z",
  aep: "M-3 -5.200H3L6 0L3 5.200H-3L-6 0z",
};

export const shapeOf = (schedule) => SHAPES[schedule] ?? SHAPES.ep;

/** 1,234 with three digits that count. */
export function figure(n) {
  if (!Number.isFinite(n)) return "–";
  const digits = n === 0 ? 0 : Math.max(0, 2 - Math.floor(Math.log10(Math.abs(n))));
  return n.toLocaleString("en", { maximumFractionDigits: Math.min(digits, 4) });
}

/** A mark of a schedule for text: legend, table. */
export function mark(schedule, hollow = false) {
  return svg("svg", { class: `mark-icon kind-${schedule}${hollow ? " hollow" : ""}`, viewBox: "-8 -8 16 16", "aria-hidden": "true" }, svg("path", { d: shapeOf(schedule) }));
}

/** Round numbers from low to high: 1, 2, 5, 10; more of them where there are few. */
function ticks(low, high, most) {
  for (const steps of [[1], [1, 3], [1, 2, 5], [1, 1.5, 2, 3, 4, 5, 6, 8]].reverse()) {
    const found = [];
    for (let k = Math.floor(Math.log10(low)); k <= Math.ceil(Math.log10(high)); k++)
      for (const s of steps) if (s * 10 ** k >= low && s * 10 ** k <= high) found.push(s * 10 ** k);
    if (found.length <= most) return found;
  }
  return [low, high];
}

class Scale {
  constructor(values, from, to) {
    const low = Math.min(...values), high = Math.max(...values);
    const room = Math.max(1.12, (high / low) ** 0.05);
    [this.low, this.high, this.from, this.to] = [low / room, high * room, from, to];
  }

  at(v) {
    return this.from + ((Math.log(v) - Math.log(this.low)) / (Math.log(this.high) - Math.log(this.low))) * (this.to - this.from);
  }
}

export class Pareto {
  /** deps: {select(point)} */
  constructor(deps) {
    this.deps = deps;
    this.picture = svg("svg", { class: "pareto", role: "radiogroup" });
    this.tip = el("div", { class: "pareto-tip", "aria-hidden": "true", hidden: true });
    this.legend = el("ul", { class: "pareto-legend", "aria-label": "Schedules" });
    this.frame = el("div", { class: "pareto-frame" }, this.picture, this.tip);
    this.node = el("div", {}, this.frame, this.legend);
    this.picture.addEventListener("pointermove", (e) => this.hover(e));
    this.picture.addEventListener("pointerleave", () => this.showTip(null));
    this.picture.addEventListener("click", (e) => { const p = this.nearest(e); if (p) this.pick(p); });
    this.picture.addEventListener("keydown", (e) => this.walk(e));
    new ResizeObserver(() => { if (this.data) this.draw(); }).observe(this.frame);
  }

  /** data: {curves: [{schedule, points}], front, points, unit, limit}; a point has tpot_ms and objective. */
  show(data, selected) {
    this.data = data;
    this.selected = selected;
    this.draw();
    this.legend.replaceChildren(...data.curves.map((c) => el("li", {}, mark(c.schedule), c.schedule)),
      el("li", {}, el("span", { class: "legend-front", "aria-hidden": "true" }), "the front"),
      ...(data.points.some((p) => p.planned_only) ? [el("li", {}, mark("ep", true), "hollow: planned only")] : []));
  }

  /** Also whenever the frame's width changes: whoever is at a point with the keyboard stays there. */
  draw() {
    const held = this.picture.contains(document.activeElement);
    const width = Math.max(280, this.frame.clientWidth), height = Math.round(Math.min(480, Math.max(310, width * 0.66)));
    const { points, limit } = this.data;
    this.picture.setAttribute("viewBox", `0 0 ${width} ${height}`);
    this.picture.setAttribute("aria-label", `${points.length} deployments by time a token and ${this.data.unit}. Arrow keys go from one to the next.`);
    const xs = points.map((p) => p.tpot_ms);
    if (limit && limit < 3 * Math.max(...xs)) xs.push(limit);
    this.x = new Scale(xs, MARGIN.left, width - MARGIN.right);
    this.y = new Scale(points.map((p) => p.objective), height - MARGIN.bottom, MARGIN.top);
    this.marks = new Map();
    this.picture.replaceChildren(this.axes(width, height), this.lines(), ...points.map((p) => this.point(p)));
    this.showSelected();
    if (held) this.marks.get(this.selected).focus({ preventScroll: true });
  }

  axes(width, height) {
    const bottom = height - MARGIN.bottom, g = svg("g", { class: "axes", "aria-hidden": "true" });
    for (const t of ticks(this.x.low, this.x.high, width / 60)) {
      const x = this.x.at(t);
      g.append(svg("path", { class: "grid", d: `M${x} ${MARGIN.top}V${bottom}` }), svg("text", { x, y: bottom + 18, "text-anchor": "middle" }, figure(t)));
    }
    for (const t of ticks(this.y.low, this.y.high, height / 40)) {
      const y = this.y.at(t);
      g.append(svg("path", { class: "grid", d: `M${MARGIN.left} ${y}H${width - MARGIN.right}` }), svg("text", { x: MARGIN.left - 9, y: y + 4, "text-anchor": "end" }, figure(t)));
    }
    const middle = (MARGIN.top + bottom) / 2;
    g.append(svg("text", { class: "axis-name", x: (MARGIN.left + width - MARGIN.right) / 2, y: height - 8, "text-anchor": "middle" }, "time a token, ms"),
      svg("text", { class: "axis-name", x: 0, y: 0, "text-anchor": "middle", transform: `translate(14 ${middle}) rotate(-90)` }, this.data.unit));
    return g;
  }

  lines() {
    const { curves, front, limit } = this.data;
    const line = (points) => points.map((p, i) => `${i ? "L" : "M"}${this.x.at(p.tpot_ms).toFixed(1)} ${this.y.at(p.objective).toFixed(1)}`).join("");
    const g = svg("g", { "aria-hidden": "true" }, svg("path", { class: "front", d: line(front) }), curves.map((c) => svg("path", { class: `curve kind-${c.schedule}`, d: line(c.points) })));
    if (limit && limit >= this.x.low && limit <= this.x.high) {
      const x = this.x.at(limit);
      g.append(svg("path", { class: "limit", d: `M${x} ${MARGIN.top}V${this.y.from}` }), svg("text", { class: "limit-name", x: x - 6, y: this.y.from - 7, "text-anchor": "end" }, `limit ${figure(limit)} ms`));
    }
    return g;
  }

  point(p) {
    const x = this.x.at(p.tpot_ms), y = this.y.at(p.objective);
    const g = svg("g", { role: "radio", tabindex: "-1", "aria-checked": "false", "aria-label": this.words(p), transform: `translate(${x.toFixed(1)} ${y.toFixed(1)})`,
      class: `point kind-${p.schedule}${p.planned_only ? " hollow" : ""}` }, svg("circle", { class: "halo", r: 2.3 * MARK }), svg("path", { d: shapeOf(p.schedule) }));
    this.marks.set(p, g);
    return g;
  }

  words(p) {
    return `${p.schedule}, ${p.workers}: ${figure(p.tpot_ms)} ms a token, ${figure(p.objective)} ${this.data.unit}${p.planned_only ? ", planned only" : ""}`;
  }

  // ---- choosing ----

  showSelected() {
    for (const [p, g] of this.marks) {
      const is = p === this.selected;
      g.setAttribute("aria-checked", String(is));
      g.setAttribute("tabindex", is ? "0" : "-1");
    }
    const g = this.marks.get(this.selected);
    if (g && g !== this.picture.lastChild && !this.picture.contains(document.activeElement)) this.picture.append(g); // over the others
  }

  select(p) {
    this.selected = p;
    this.showSelected();
  }

  pick(p) {
    this.select(p);
    this.deps.select(p);
  }

  /** Left and right: slower, faster, on the same schedule; up and down: the nearest of another one. */
  walk(e) {
    const curves = this.data?.curves.map((c) => c.points) ?? [];
    const at = curves.findIndex((c) => c.includes(this.selected));
    if (at < 0) return;
    const i = curves[at].indexOf(this.selected);
    const near = (c) => c.reduce((a, b) => (Math.abs(Math.log(b.tpot_ms / this.selected.tpot_ms)) < Math.abs(Math.log(a.tpot_ms / this.selected.tpot_ms)) ? b : a));
    const to = { ArrowRight: () => curves[at][i + 1], ArrowLeft: () => curves[at][i - 1], ArrowDown: () => near(curves[(at + 1) % curves.length]), ArrowUp: () => near(curves[(at + curves.length - 1) % curves.length]),
      Home: () => curves[at][0], End: () => curves[at].at(-1) }[e.key];
    if (!to) return;
    e.preventDefault();
    const p = to();
    if (!p) return;
    this.pick(p);
    this.marks.get(p).focus();
  }

  nearest(e) {
    if (!this.data) return null;
    const box = this.picture.getBoundingClientRect();
    const far = (p) => Math.hypot(this.x.at(p.tpot_ms) - (e.clientX - box.left), this.y.at(p.objective) - (e.clientY - box.top));
    const best = this.data.points.reduce((a, b) => (far(b) < far(a) ? b : a));
    return far(best) <= REACH_PX ? best : null;
  }

  hover(e) {
    this.showTip(this.nearest(e));
  }

  showTip(p) {
    this.tip.hidden = !p;
    this.picture.classList.toggle("aimed", Boolean(p));
    if (!p) return;
    this.tip.replaceChildren(el("strong", {}, `${p.schedule}${p.details === "-" ? "" : ` ${p.details}`}`), el("span", {}, p.workers), el("span", {}, `${figure(p.tpot_ms)} ms a token · ${figure(p.objective)} ${this.data.unit}`));
    const x = this.x.at(p.tpot_ms), y = this.y.at(p.objective), right = x > this.frame.clientWidth / 2;
    this.tip.style.left = right ? "auto" : `${x + 14}px`;
    this.tip.style.right = right ? `${this.frame.clientWidth - x + 14}px` : "auto";
    this.tip.style.top = `${Math.max(0, y - 20)}px`;
  }
}
