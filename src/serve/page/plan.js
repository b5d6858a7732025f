// The planner's view: a form, what the server's planner found as a picture and a table, and the plan that is chosen.
import { ask } from "./api.js";
import { announce, copyText, download, el, iconButton, toast } from "./dom.js";
import { Pareto, figure, mark } from "./pareto.js";
import { PlanForm, scheduleText } from "./plan-form.js";

const ASK_MS = 300; // between two questions how far it is

const percent = (share) => `${Math.round(100 * share)} %`;
const size = (bytes) => (bytes >= 1e9 ? `${figure(bytes / 1e9)} GB` : `${figure(bytes / 1e6)} MB`);
const time = (ms) => (ms >= 1000 ? `${figure(ms / 1000)} s` : `${figure(ms)} ms`);
const sentence = (text) => `${text.slice(0, 1).toUpperCase()}${text.slice(1)}`;
const many = (n, one) => `${n.toLocaleString("en")} ${one}${n === 1 ? "" : "s"}`;

/** What makes two deployments of an answer the same one: they are listed by schedule, as the front, and as the best. */
const sameAs = (p) => [p.schedule, p.workers, p.details, p.rows, p.copies, p.tpot_ms].join("|");

/** The answer's lists, in which a deployment that is in several is one object. */
function pointsOf(result) {
  const all = new Map();
  const one = (p) => {
    if (!all.has(sameAs(p))) all.set(sameAs(p), p);
    return all.get(sameAs(p));
  };
  const best = result.deployments.map(one), front = result.front.map(one);
  if (!front.includes(best[0])) front.push(best[0]); // nothing gives more, if only by a little
  const names = [...new Set(result.curves.map((c) => c.schedule).concat(best.map((p) => p.schedule)))];
  const curves = names.map((schedule) => {
    const list = (result.curves.find((c) => c.schedule === schedule)?.points ?? []).map(one);
    const points = [...new Set(list.concat(best.filter((p) => p.schedule === schedule)))];
    return { schedule, points: points.sort((a, b) => a.tpot_ms - b.tpot_ms) };
  });
  return { best, front, curves, points: curves.flatMap((c) => c.points) };
}

export class Plan {
  /** deps: {place, onError(error)} */
  constructor(deps) {
    this.deps = deps;
    this.inner = el("div", { class: "cards" });
    this.deps.place.append(this.inner);
  }

  /** The view is shown for the first time: what there is to choose from. */
  async show(shown) {
    if (!shown || this.form || this.asked) return;
    this.asked = true;
    try {
      this.build(await ask("plan/options"));
    } catch (e) {
      this.inner.replaceChildren(el("p", { class: "card" }, e.message));
      this.deps.onError(e);
    }
    this.asked = false;
  }

  build(offer) {
    this.form = new PlanForm(offer, { run: () => this.run(), cancel: () => this.cancel() });
    this.results = el("div", { class: "plan-results", hidden: true });
    const head = el("div", { class: "card-head" }, el("h2", {}, "What to plan"), el("p", { class: "muted" }, "planned on the server, beside what it serves and at low priority; nothing that runs changes"));
    this.inner.replaceChildren(el("section", { class: "card" }, head, this.form.node), this.results);
  }

  // ---- a run ----

  async run() {
    const began = performance.now(), control = new AbortController();
    this.control = control;
    this.form.setRunning(true);
    this.form.say("Searching …");
    const timer = setInterval(() => this.look(began), ASK_MS);
    try {
      this.take(await ask("plan", { body: this.form.value(), signal: control.signal }));
    } catch (e) {
      this.form.say(e.name === "AbortError" ? "Cancelled." : "");
      if (e.name !== "AbortError") this.refused(e);
    }
    clearInterval(timer);
    this.control = null;
    this.form.setRunning(false);
  }

  refused(e) {
    this.form.setRunning(false);
    this.form.showError(e);
    this.deps.onError(e);
  }

  cancel() {
    this.control?.abort();
  }

  async look(began) {
    try {
      const now = await ask("plan/running");
      if (!this.control) return;
      this.form.showProgress(now);
      const part = now.total ? `${now.done} of ${now.total} steps, ` : "";
      this.form.say(`Searching … ${part}${((performance.now() - began) / 1000).toFixed(0)} s`);
    } catch {
      // the answer says what is wrong
    }
  }

  // ---- what was found ----

  take({ seconds, notes, result }) {
    this.result = result;
    this.found = pointsOf(result);
    const winner = this.found.best[0];
    this.form.say(`${many(result.layouts, "deployment")} in ${seconds < 10 ? seconds.toFixed(1) : Math.round(seconds)} s.`);
    this.pareto = new Pareto({ select: (p) => this.select(p) });
    this.details = el("section", { class: "card plan-details", "aria-label": "The chosen deployment" });
    this.table = el("div", { class: "plan-table", tabindex: "0", role: "region", "aria-label": "Deployments as a table" });
    const of = `${result.model} on ${result.cluster}, ${many(result.devices, "device")}`;
    const kind = result.estimated ? "estimates from data sheets, not measured" : "from costs that were measured";
    this.results.replaceChildren(
      el("div", { class: "plan-left" },
        el("section", { class: "card plan-picture" }, el("div", { class: "card-head" }, el("h2", {}, of), el("p", { class: "muted" }, kind)), this.pareto.node, notes.map((n) => el("p", { class: "help" }, n))),
        el("section", { class: "card plan-list" }, this.tableHead(), this.table)),
      this.details);
    this.results.hidden = false;
    this.pareto.show({ ...this.found, unit: result.unit, limit: result.slo_tpot_ms }, winner);
    this.showRows("front");
    this.select(winner);
    announce(`${many(result.layouts, "deployment")} considered. ${result.why}.`);
    this.results.scrollIntoView({ block: "nearest", behavior: matchMedia("(prefers-reduced-motion: reduce)").matches ? "auto" : "smooth" });
  }

  tableHead() {
    const lists = { front: "The front", best: "Best of each schedule", points: "All" };
    const tabs = Object.entries(lists).map(([name, text]) => el("button", { type: "button", class: "choice", "data-list": name, onclick: () => this.showRows(name) }, text));
    this.tabs = el("div", { class: "choices", role: "group", "aria-label": "What the table lists" }, tabs);
    return el("div", { class: "card-head" }, el("h2", {}, "The same as a table"), this.tabs);
  }

  showRows(list) {
    this.list = list;
    for (const tab of this.tabs.children) tab.setAttribute("aria-pressed", String(tab.dataset.list === list));
    const points = list === "points" ? [...this.found.points].sort((a, b) => a.tpot_ms - b.tpot_ms) : this.found[list];
    const head = ["Deployment", "ms a token", "First token", "Requests", "tok/s"].concat(this.result.unit === "tok/s" ? [] : [this.result.unit]);
    this.rows = new Map(points.map((p) => [p, this.row(p)]));
    this.table.replaceChildren(el("table", {}, el("caption", { class: "unseen" }, `Deployments of ${this.result.model}: ${this.tabs.querySelector("[aria-pressed=true]").textContent}`),
      el("thead", {}, el("tr", {}, head.map((h, i) => el("th", { scope: "col", class: i > 0 ? "to-right" : null }, h)))), el("tbody", {}, [...this.rows.values()])));
    this.markRow();
  }

  row(p) {
    const name = el("button", { type: "button", class: "plan-pick", "aria-pressed": "false", onclick: () => { this.pareto.select(p); this.select(p); } },
      mark(p.schedule, Boolean(p.planned_only)), el("span", {}, `${p.schedule}${p.details === "-" ? "" : ` ${p.details}`} `, p.planned_only && el("span", { class: "tag" }, "planned")));
    const numbers = [figure(p.tpot_ms), time(p.ttft_ms), p.requests.toLocaleString("en"), figure(p.tokens_per_s)].concat(this.result.unit === "tok/s" ? [] : [figure(p.objective)]);
    const workers = el("span", { class: "plan-workers" }, `${p.copies > 1 ? `${p.copies} × ` : ""}${p.workers}`);
    return el("tr", {}, el("th", { scope: "row" }, name, workers), numbers.map((n) => el("td", { class: "to-right" }, n)));
  }

  markRow() {
    for (const [p, row] of this.rows) {
      row.classList.toggle("chosen", p === this.selected);
      row.querySelector("button").setAttribute("aria-pressed", String(p === this.selected));
    }
  }

  // ---- one of them ----

  select(p) {
    this.selected = p;
    this.markRow();
    const wins = p === this.found.best[0];
    const tags = [wins && "wins", !wins && this.found.front.includes(p) && "on the front", p.planned_only && "planned only"].filter(Boolean);
    this.details.replaceChildren(
      el("div", { class: "plan-name" }, mark(p.schedule, Boolean(p.planned_only)), el("h2", {}, `${p.schedule}${p.details === "-" ? "" : ` ${p.details}`}`), tags.map((t) => el("span", { class: "tag" }, t))),
      el("p", { class: "muted" }, `${sentence(scheduleText(p.schedule))}: ${p.copies > 1 ? `${p.copies} independent copies of ` : ""}${p.workers}.`),
      this.facts(p), this.busy(p), el("h3", {}, wins ? "Why this one" : "What binds it"), el("ul", { class: "plan-why" }, this.reasons(p, wins).map((r) => el("li", {}, r))),
      this.takeAway(p));
  }

  facts(p) {
    const rows = [
      ["Time a token", time(p.tpot_ms)], ["First token", p.ttft_ms ? time(p.ttft_ms) : "elsewhere"], ["One user", `${figure(1000 / p.tpot_ms)} tok/s`], ["All", `${figure(p.tokens_per_s)} tok/s`],
      ["Requests at once", p.requests.toLocaleString("en")], ["Devices", `${p.devices} of ${this.result.devices}`], ["Memory, attention", size(p.memory_bytes.attention)], ["Memory, experts", size(p.memory_bytes.expert)],
    ];
    if (this.result.unit !== "tok/s") rows.splice(4, 0, [this.result.unit, figure(p.objective)]);
    return el("dl", { class: "plan-facts" }, rows.map(([name, value]) => el("div", {}, el("dt", {}, name), el("dd", {}, value))));
  }

  /** How busy each station is in a layer. */
  busy(p) {
    const bar = (name, share) => {
      const fill = el("span", { class: `busy-${name}` });
      fill.style.width = `${100 * Math.min(1, share)}%`;
      return el("div", { class: "busy" }, el("span", {}, name), el("div", { class: "busy-bar", "aria-hidden": "true" }, fill), el("span", { class: "to-right" }, percent(share)));
    };
    return el("div", { class: "plan-busy", role: "group", "aria-label": "How busy each is" }, bar("attention", p.busy.attention), bar("experts", p.busy.expert), bar("link", p.busy.link));
  }

  /** The planner's sentence, in parts. */
  reasons(p, wins) {
    const text = wins ? this.result.why : p.about;
    const parts = text.split(/; |: /).map((t, i) => `${wins && i === 0 ? t : sentence(t)}.`);
    if (p.optimistic) parts.push("Optimistic: there is no law for it, sluice simulate tells more.");
    if (p.simulated) parts.push("There is no law for it: its steps were simulated.");
    if (p.derived) parts.push("Derived from the profile: tensor parallelism was not measured.");
    return parts;
  }

  takeAway(p) {
    if (!p.plan) {
      const why = p.planned_only ? `Planned only: Sluice does not run ${p.planned_only} yet.` : "There is no plan.json: a device does not hold the KV of one request of this length.";
      return el("p", { class: "plan-note" }, why);
    }
    const command = "sluice serve MODEL --plan plan.json";
    const save = () => download("plan.json", "application/json", `${JSON.stringify(p.plan, null, 1)}\n`);
    const copy = async () => { await copyText(command); toast("The command is copied."); };
    return el("div", { class: "plan-take" }, el("button", { type: "button", class: "primary", onclick: save }, "Save plan.json"),
      el("div", { class: "plan-command" }, el("code", {}, command), iconButton("copy", "Copy the command", copy)),
      p.copies > 1 && el("p", { class: "help" }, `The plan is of one copy; ${p.copies} servers of it are this deployment.`));
  }
}
