// The last moments of every worker as a timeline, in the colours of `sluice trace`: a row for each worker, a thinner
// one for each micro-batch that is with the experts.
import { el } from "./dom.js";
import { workerName } from "./rooms.js";

const ROW_PX = 24, LANE_PX = 9;
const QUIET = { wait: 0.22, poll: 0.5 }; // how strongly these are painted where the page is dark
const TICKS = 4, HATCH_PX = 9;
const SHADES = 4; // of micro-batches, then they repeat

const isDark = () => getComputedStyle(document.documentElement).colorScheme === "dark";

/** Slanting lines over the beginning of a strip. */
function hatch(pen, width, height, step) {
  if (width < 1) return;
  pen.clearRect(0, 0, width, height);
  pen.globalAlpha = 0.35;
  pen.strokeStyle = getComputedStyle(document.documentElement).getPropertyValue("--line-strong");
  pen.lineWidth = step / 6;
  pen.save();
  pen.beginPath();
  pen.rect(0, 0, width, height);
  pen.clip();
  pen.beginPath();
  for (let x = -height; x < width; x += step) {
    pen.moveTo(x, height);
    pen.lineTo(x + height, 0);
  }
  pen.stroke();
  pen.restore();
}

class Row {
  constructor(label, height, thin) {
    this.canvas = el("canvas", { class: "strip", role: "img" });
    this.height = height;
    this.node = el("div", { class: thin ? "strip-row thin" : "strip-row" }, el("span", { class: "strip-label" }, label), this.canvas);
  }

  /** spans: as in a sample; what was before `from`, in us, is not known. */
  draw(spans, sample, from, colourOf) {
    const { canvas } = this, scale = devicePixelRatio, width = canvas.clientWidth;
    canvas.width = Math.round(width * scale);
    canvas.height = Math.round(this.height * scale);
    const pen = canvas.getContext("2d"), dark = isDark();
    for (const [kind, begin, length, lane] of spans) {
      const [, category] = sample.kinds[kind], colour = colourOf(kind, lane);
      if (!colour) continue;
      pen.globalAlpha = (dark && QUIET[category]) || 1;
      pen.fillStyle = colour;
      const x = (begin / sample.window_us) * canvas.width, w = (length / sample.window_us) * canvas.width;
      pen.fillRect(x, 0, Math.max(w, 0.6), canvas.height);
    }
    hatch(pen, (from / sample.window_us) * canvas.width, canvas.height, HATCH_PX * scale);
  }
}

/** What a row shows, for who does not see it. */
function inWords(spans, known_us, sample) {
  const sums = {};
  for (const [kind, , length] of spans) {
    const [own, category] = sample.kinds[kind], name = category === "execute" || category === "device" ? own : category;
    sums[name] = (sums[name] ?? 0) + length;
  }
  const parts = Object.entries(sums).sort((a, b) => b[1] - a[1]).map(([name, us]) => `${name} ${Math.round((100 * us) / known_us)} %`);
  const missing = known_us < sample.window_us ? ` of the last ${Math.round(known_us / 1000)} ms; what was before is not known` : "";
  return `${parts.join(", ") || "idle"}${missing}`;
}

/** The colour of a span: with several micro-batches each has its shade of it, where spans are of micro-batches. */
function shadeOf(sample, kind, lane) {
  const [, , colour, others] = sample.kinds[kind], shade = lane % SHADES;
  return sample.lanes > 1 && shade && others ? others[shade - 1] : colour;
}

/** Colours of micro-batches: those of the dots between the rooms. */
const laneColour = (lane) => getComputedStyle(document.documentElement).getPropertyValue(`--batch-${lane % 4}`);

export class Timeline {
  constructor() {
    this.rows = new Map();
    this.strips = el("div", { class: "strips" });
    this.cursor = el("div", { class: "strip-cursor" });
    this.axis = el("div", { class: "strip-axis", "aria-hidden": "true" });
    this.legend = el("ul", { class: "strip-legend" });
    this.strips.append(this.cursor);
    this.node = el("div", {}, this.strips, this.axis, this.legend);
    new ResizeObserver(() => { if (this.sample) this.draw(this.sample); }).observe(this.strips);
  }

  /** behind: the row that a new one comes after; else it is the last. */
  row(key, label, height, thin, behind) {
    if (!this.rows.has(key)) {
      const row = new Row(label, height, thin);
      this.rows.set(key, row);
      if (behind) behind.node.after(row.node);
      else this.strips.append(row.node);
    }
    return this.rows.get(key);
  }

  take(sample) {
    this.sample = sample;
    if (!this.axis.children.length) {
      const ms = (i) => `${Math.round((i * sample.window_us) / TICKS / 1000)} ms`;
      this.axis.append(...Array.from({ length: TICKS + 1 }, (_, i) => el("span", {}, ms(i))));
    }
    this.draw(sample);
    this.showLegend(sample);
  }

  draw(sample) {
    for (const w of sample.workers) {
      const spans = w.view?.spans ?? [], flights = (w.view?.flights ?? []).filter((f) => sample.kinds[f[0]][0] === "experts");
      const row = this.row(`w${w.id}`, w.role === "both" ? workerName(w) : `${w.role} ${w.id}`, ROW_PX, false);
      const from = w.view?.whole_from_us ?? 0;
      row.draw(spans, sample, from, (kind, lane) => shadeOf(sample, kind, lane));
      row.canvas.setAttribute("aria-label", `${workerName(w)}: ${inWords(spans, sample.window_us - from, sample)}`);
      if (w.view?.device) {
        const device = this.row(`w${w.id}.device`, `device of ${w.id}`, LANE_PX * 2, true, row);
        device.draw(w.view.device, sample, from, (kind, lane) => shadeOf(sample, kind, lane));
        device.canvas.setAttribute("aria-label", `device of ${workerName(w)}: ${inWords(w.view.device, sample.window_us - from, sample)}`);
      }
      if (w.role === "expert") continue;
      for (let lane = 0; lane < sample.lanes; lane++) {
        const thin = this.row(`w${w.id}.${lane}`, sample.lanes > 1 ? `batch ${lane} away` : "away", LANE_PX, true);
        const own = flights.filter((f) => f[3] === lane);
        thin.draw(own, sample, from, () => laneColour(lane));
        thin.canvas.setAttribute("aria-label", `micro-batch ${lane} of worker ${w.id} was with the experts ${own.length} times`);
      }
    }
  }

  showLegend(sample) {
    const seen = new Set(sample.workers.flatMap((w) => [...(w.view?.spans ?? []), ...(w.view?.device ?? [])].map((s) => s[0])));
    const missing = sample.workers.some((w) => w.view?.whole_from_us > 0);
    const key = `${[...seen].sort((a, b) => a - b).join()} ${missing} ${sample.lanes}`;
    if (key === this.legendKey) return;
    this.legendKey = key;
    const colours = new Map();
    for (const kind of [...seen].sort((a, b) => a - b)) {
      const [name, , colour] = sample.kinds[kind];
      if (colour) colours.set(colour, [...new Set([...(colours.get(colour) ?? []), name])]);
    }
    const entry = (colour, text, opacity) => {
      const swatch = el("span", { class: "swatch" });
      swatch.style.background = colour;
      swatch.style.opacity = opacity;
      return el("li", {}, swatch, text);
    };
    const attention = sample.kinds.findIndex((k) => k[0] === "attention");
    const lanes = sample.lanes > 1 ? Array.from({ length: Math.min(sample.lanes, SHADES) }, (_, lane) => entry(shadeOf(sample, attention, lane), `micro-batch ${lane}`, 1)) : [];
    this.legend.replaceChildren(...[...colours].map(([colour, names]) => entry(colour, names.join(", "), (isDark() && QUIET[names[0]]) || 1)), ...lanes, missing ? el("li", {}, el("span", { class: "swatch hatched" }), "not known: more happened than is kept") : "");
  }

  moveTo(share) {
    this.cursor.style.setProperty("--share", share);
  }
}
