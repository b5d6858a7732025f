// The rooms of the deployment: a card for the coordinator and each worker, links between them, micro-batches on these.
import { el, svg } from "./dom.js";

const PARTS = ["execute", "pack", "send", "poll", "wait", "idle"]; // of time_us
const WORDS_MS = 120; // between changes of words, so that they can be read
const OUT = 0.22, BACK = 0.78; // of a flight: on its way there until, and back from
const SURE_MS = 4000;
const BITS = 8;
const DOT_PX = 5;
const MOST_NAMED = 4; // workers in a line
const MOST_LINKS = 6; // of a card, in words
const ARC_PX = 24; // beside cards, for links between those of one column

const roleName = { attention: "Attention", expert: "Experts", both: "Worker" };

/** "attention worker 0"; one that has experts, too, is a worker. */
export const workerName = (w) => (w.role === "both" ? `worker ${w.id}` : `${w.role} worker ${w.id}`);

/** "worker 1", "workers 1, 2"; null: nobody, or more than one reads. */
function named(ids) {
  if (!ids.length || ids.length > MOST_NAMED) return null;
  return `${ids.length === 1 ? "worker" : "workers"} ${ids.join(", ")}`;
}

/** Whom a worker may wait for: hosts of the block, attention workers whose rows are missing, whose word makes the next
 *  round; what kind they are where they are too many. */
function whomOf(reason, worker, block, sample) {
  const others = (ids) => named(ids.filter((id) => id !== worker.id));
  if (reason === "experts") {
    const at = sample.hosts.length === 1 ? 0 : sample.schedule === "aep" ? -1 : sample.moe_layers.indexOf(block); // aep waits for any block
    const whom = others(sample.hosts[at] ?? []);
    return whom ? `experts of ${whom}` : worker.role === "both" ? "experts of others" : "the experts";
  }
  const attends = others(sample.workers.filter((w) => w.role !== "expert" && w.state === "serving").map((w) => w.id));
  if (reason === "members") return attends ? `rows of ${attends}` : "other attention workers";
  if (reason === "dispatch") return attends ? `rows of ${attends}` : "rows";
  if (reason !== "round") return null;
  return sample.sequencer === null || sample.sequencer === worker.id ? "the next round" : `the next round, from worker ${sample.sequencer}`;
}

function waitText(reason, worker, block, sample) {
  const whom = whomOf(reason, worker, block, sample);
  return whom ? `waits for ${whom}` : worker.state === "serving" ? "idle" : worker.state;
}

/** What the coordinator does as a whole; nobody times its threads. */
function hubText(s) {
  if (!s.serving) return "waits for workers";
  if (s.recovering) return `recovers${s.recovery.why ? `: ${s.recovery.why}` : ""}`;
  if (s.changing) return "changes the plan";
  return s.running ? `serves ${s.running} ${s.running === 1 ? "request" : "requests"}` : s.waiting ? "lets requests in" : "idle";
}

function rateText(bits) {
  return bits >= 1e6 ? `${(bits / 1e6).toFixed(1)} Mbit/s` : `${Math.round(bits / 1e3)} kbit/s`;
}

/** The last span that has begun by then and has not ended; spans are in order. */
function spanAt(spans, us) {
  let low = 0, high = spans.length;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (spans[middle][1] <= us) low = middle + 1;
    else high = middle;
  }
  const found = spans[low - 1];
  return found && us <= found[1] + found[2] ? found : null;
}

class Card {
  constructor(worker, kill) {
    this.dot = el("span", { class: "room-dot" });
    this.words = el("span", { class: "room-words" });
    this.share = el("div", { class: "room-share", role: "img", "aria-label": "its time is not known yet" }, PARTS.map((p) => el("span", { class: `part-${p}` })));
    this.notes = el("p", { class: "room-notes" });
    this.links = el("p", { class: "room-notes room-links" });
    this.end = el("button", { type: "button", class: "room-end", onclick: () => this.ask(kill) }, "End");
    this.title = el("h3", {}, `${roleName[worker.role]} ${worker.id}`, worker.role === "both" ? el("span", { class: "muted" }, " attention and experts") : null,
      worker.prefill ? el("span", { class: "muted" }, " for prompts") : null);
    this.node = el("article", { class: "room", "aria-label": `Worker ${worker.id}, ${worker.role}` },
      el("div", { class: "room-head" }, this.title, this.end), el("p", { class: "room-now" }, this.dot, this.words), this.share, this.notes, this.links);
  }

  /** The first press asks whether it is meant. */
  ask(kill) {
    if (this.sure) {
      clearTimeout(this.sure);
      this.calm();
      kill();
      return;
    }
    this.end.textContent = "End this process?";
    this.end.classList.add("sure");
    this.sure = setTimeout(() => this.calm(), SURE_MS);
  }

  calm() {
    this.sure = null;
    this.end.textContent = "End";
    this.end.classList.remove("sure");
  }

  take(worker, old) {
    this.worker = worker;
    this.node.dataset.state = worker.state;
    this.end.hidden = worker.pid <= 0 || worker.state !== "serving";
    this.end.setAttribute("aria-label", `End worker ${worker.id}`);
    this.showShare(worker, old);
    const notes = [worker.pid > 0 ? `process ${worker.pid}` : "in this process or elsewhere"];
    if (worker.kv_pages[1]) notes.push(`${worker.kv_pages[0]} of ${worker.kv_pages[1]} KV pages`, `${worker.requests} requests`);
    if (worker.prompts[1]) notes.push(`${worker.prompts[0]} of ${worker.prompts[1]} rows of prompts`);
    if (worker.view && !worker.view.same_clock) notes.push("another clock: times may be off by a link's delay");
    this.notes.textContent = notes.join(" · ");
  }

  showShare(worker, old) {
    const spent = worker.time_us.map((t, i) => Math.max(0, t - (old?.time_us[i] ?? 0)));
    const all = spent.reduce((a, b) => a + b, 0);
    if (!all) return;
    [...this.share.children].forEach((part, i) => { part.style.width = `${(100 * spent[i]) / all}%`; });
    this.share.setAttribute("aria-label", PARTS.map((p, i) => `${p} ${Math.round((100 * spent[i]) / all)} %`).join(", "));
  }

  /** What it did `us` after the window's beginning. */
  moveTo(us, sample) {
    const { worker } = this;
    const span = worker?.view && worker.state === "serving" ? spanAt(worker.view.spans, us) : null;
    const [name, category, colour] = span ? sample.kinds[span[0]] : [null, "idle", null];
    this.dot.style.background = colour && category !== "wait" ? colour : "transparent";
    this.node.classList.toggle("works", category === "execute");
    const where = sample.lanes > 1 ? `block ${span?.[4]}, micro-batch ${span?.[3]}` : `block ${span?.[4]}`;
    const known = !(us < worker?.view?.whole_from_us);
    this.words.textContent = !known ? "not known" : !span || category === "wait" ? waitText(sample.waits[span?.[5]], worker, span?.[4], sample) : category === "execute" ? `${name}, ${where}` : category === "poll" ? "looks for messages" : name;
  }
}

export class Rooms {
  /** deps: {kill(worker)} */
  constructor(deps) {
    this.deps = deps;
    this.cards = new Map();
    this.attention = el("div", { class: "rooms-column" });
    this.experts = el("div", { class: "rooms-column" });
    this.hubWords = el("p", { class: "room-now hub-now" });
    this.hubNotes = el("p", { class: "room-notes" });
    this.hub = el("article", { class: "room hub", "aria-label": "Coordinator" }, el("h3", {}, "Coordinator"), this.hubWords, this.hubNotes);
    this.wires = svg("svg", { class: "wires", "aria-hidden": "true" });
    this.node = el("div", { class: "rooms" }, this.wires, el("div", { class: "rooms-column" }, this.hub), this.attention, this.experts);
    this.links = [];
    this.wordsAt = 0;
    new ResizeObserver(() => this.drawLinks()).observe(this.node);
  }

  take(sample, before) {
    let changed = false;
    sample.workers.forEach((w, i) => {
      if (!this.cards.has(w.id)) {
        const card = new Card(w, () => this.deps.kill(w.id));
        this.cards.set(w.id, card);
        (w.role === "expert" ? this.experts : this.attention).append(card.node);
        changed = true;
      }
      this.cards.get(w.id).take(w, before?.workers[i]);
    });
    this.experts.hidden = this.experts.children.length === 0;
    this.node.classList.toggle("together", this.experts.hidden); // each has experts: rows go between them all
    this.showHub(sample, before);
    this.sample ??= sample;
    if (changed) this.drawLinks();
  }

  showHub(s, before) {
    this.hubWords.textContent = hubText(s);
    this.hub.classList.toggle("busy", !s.serving || s.recovering || s.changing);
    const notes = [`${s.running} running, ${s.waiting} waiting`, `plan ${s.plan}`];
    if (before) notes.push(`CPU of this process: ${Math.round((s.cpu_us - before.cpu_us) / s.seconds / 1e4)} % of a core`);
    this.hubNotes.textContent = notes.join(" · ");
  }

  takeWindow(sample) {
    this.sample = sample;
    for (const link of this.links) this.nameLink(link, sample);
    for (const [id, card] of this.cards) this.tellLinks(id, card);
  }

  // ---- links ----

  drawLinks() {
    const box = this.node.getBoundingClientRect();
    const side = (node) => {
      const r = node.getBoundingClientRect();
      return { left: r.left - box.left, right: r.right - box.left, y: r.top - box.top + r.height / 2, top: r.top - box.top, bottom: r.bottom - box.top, x: r.left - box.left + r.width / 2 };
    };
    const curve = (a, b) => {
      const across = (a.right + b.left) / 2, room = box.width - a.right;
      if (a.right < b.left) return `M${a.right} ${a.y}C${across} ${a.y} ${across} ${b.y} ${b.left} ${b.y}`;
      if (a.left === b.left && room > ARC_PX) return `M${a.right} ${a.y}C${a.right + room} ${a.y} ${b.right + room} ${b.y} ${b.right} ${b.y}`;
      return `M${a.x} ${a.bottom}L${b.x} ${b.top}`;
    };
    const link = (from, to, a, b) => {
      const path = svg("path", { d: curve(side(a), side(b)), class: "wire" });
      const title = svg("title");
      path.append(title);
      return { from, to, path, title };
    };
    const cards = [...this.cards.values()].filter((c) => c.worker);
    const attends = cards.filter((c) => c.worker.role !== "expert"), expert = cards.filter((c) => c.worker.role === "expert");
    this.links = [...attends.map((c) => link(-1, c.worker.id, this.hub, c.node)),
      ...attends.flatMap((a) => expert.map((e) => link(a.worker.id, e.worker.id, a.node, e.node))),
      ...(expert.length ? [] : attends.flatMap((a, i) => attends.slice(i + 1).map((b) => link(a.worker.id, b.worker.id, a.node, b.node))))];
    this.dots = svg("g");
    this.wires.replaceChildren(...this.links.map((l) => l.path), this.dots);
  }

  /** How much went over a link in the window, both ways; what the coordinator sends is not counted. */
  nameLink(link, sample) {
    const sent = (from, to) => { // bits a second of the part that is known; null: nothing is
      const view = sample.workers.find((w) => w.id === from)?.view, known_us = sample.window_us - (view?.whole_from_us ?? 0);
      return view && known_us > 0 ? (BITS * 1e6 * (view.sent.find((s) => s[0] === to)?.[2] ?? 0)) / known_us : null;
    };
    const ways = [sent(link.from, link.to), sent(link.to, link.from)].filter((bits) => bits !== null);
    link.bits = ways.length ? ways.reduce((a, b) => a + b, 0) : null;
    link.title.textContent = link.bits === null ? "not known" : rateText(link.bits);
    link.path.style.strokeWidth = `${Math.min(6, 1.2 + Math.log10(1 + ((link.bits ?? 0) * sample.window_us) / (BITS * 1e9)))}px`;
  }

  /** The same in words: the links of a card that carry most. */
  tellLinks(id, card) {
    const own = this.links.filter((l) => (l.from === id || l.to === id) && l.bits !== null).sort((a, b) => b.bits - a.bits);
    const parts = own.slice(0, MOST_LINKS).map((l) => (l.from < 0 ? `to the coordinator ${rateText(l.bits)}` : `with worker ${l.from === id ? l.to : l.from} ${rateText(l.bits)}`));
    const rest = own.slice(MOST_LINKS);
    if (rest.length) parts.push(`with ${rest.length} others ${rateText(rest.reduce((sum, l) => sum + l.bits, 0))}`);
    card.links.textContent = parts.length ? `Links: ${parts.join(" · ")}` : "";
  }

  // ---- the replay ----

  /** What everybody did `us` after the window's beginning. */
  moveTo(us, now) {
    this.moveDots(us);
    if (now - this.wordsAt < WORDS_MS) return;
    this.wordsAt = now;
    for (const card of this.cards.values()) card.moveTo(us, this.sample);
  }

  /** A dot on each link for a micro-batch that is with the experts: there with its rows, back with their sums. */
  moveDots(us) {
    const flights = this.sample.workers.flatMap((w) => (w.view?.flights ?? [])
      .filter((f) => this.sample.kinds[f[0]][0] === "experts" && f[1] <= us && us <= f[1] + f[2])
      .map((f) => ({ from: w.id, lane: f[3], share: f[2] ? (us - f[1]) / f[2] : 1 })));
    const dots = flights.flatMap((f) => this.links.filter((l) => l.from === f.from || (l.to === f.from && l.from >= 0)).map((l) => this.dot(l, f)));
    this.dots?.replaceChildren(...dots);
  }

  dot({ path, from: end }, { share, lane, from }) {
    const away = share < OUT ? share / OUT : share > BACK ? (1 - share) / (1 - BACK) : 1;
    const along = from === end ? away : 1 - away;
    const length = path.getTotalLength(), room = Math.min(DOT_PX, length / 2); // a card would hide it
    const at = path.getPointAtLength(room + along * (length - 2 * room));
    return svg("circle", { cx: at.x, cy: at.y, r: DOT_PX, class: `batch batch-${lane % 4}` });
  }
}
