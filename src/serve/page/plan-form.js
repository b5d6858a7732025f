// The form of the planner: what to plan, as the body of POST /plan. The server checks it; a field that it names is marked.
import { el, icon } from "./dom.js";

const MOST_GROUPS = 6;
const DESCRIBED = "described", MEASURED = "measured", LENGTHS = "lengths";

// What each schedule is, as in docs/planner.md.
const SCHEDULES = {
  ep: "every worker has attention and some experts",
  eps: "the same, experts in groups",
  hybrid: "experts cut over the devices of a node",
  pipeline: "the layers spread over stages",
  dep: "attention and experts on separate workers",
  pingpong: "the same with micro-batches",
  findep: "micro-batches in chunks",
  aep: "no barrier between them",
};

const OBJECTIVES = { "tok/s": "tokens a second", "tok/s/device": "tokens a second a device", "tok/s/$": "tokens a second a price" };

export const scheduleText = (name) => SCHEDULES[name] ?? "";

const option = (value, text = value) => el("option", { value }, text);
const devicesOf = (nodes) => nodes.map((n) => `${n.count * n.devices_per_node} ${n.device}`).join(" + ");

/** A field with its label, and what it means. */
function field(id, label, input, help = null) {
  input.id = `p-${id}`;
  if (help) input.setAttribute("aria-describedby", `ph-${id}`);
  return el("div", { class: "field" }, el("label", { for: `p-${id}` }, label), input, help && el("p", { class: "help", id: `ph-${id}` }, help));
}

const number = (value, attributes = {}) => el("input", { type: "number", value, step: "any", inputmode: "decimal", ...attributes });
const select = (...options) => el("select", {}, options);

/** One kind of nodes of a cluster that is described. */
class Group {
  constructor(index, devices, remove) {
    this.device = select(...devices.map((d) => option(d.name)));
    this.perNode = number(8, { min: 1, step: 1 });
    this.count = number(1, { min: 1, step: 1 });
    this.intra = number(450);
    this.intraUs = number(10);
    this.inter = number(400);
    this.interUs = number(10);
    const name = (what) => `${what}-${index}`;
    const part = (...fields) => el("div", { class: "plan-part" }, fields);
    this.node = el("div", { class: "plan-group", role: "group", "aria-label": `Nodes of kind ${index + 1}` },
      part(field(name("device"), "Device", this.device), field(name("count"), "Nodes", this.count), field(name("per"), "Each has", this.perNode)),
      part(field(name("intra"), "In a node, GB/s", this.intra), field(name("intra-us"), "µs", this.intraUs)),
      part(field(name("inter"), "Between, Gbit/s", this.inter), field(name("inter-us"), "µs", this.interUs)),
      el("button", { type: "button", class: "icon-button", "aria-label": `Remove nodes of kind ${index + 1}`, title: "Remove", onclick: () => remove(this) }, icon("trash")));
  }

  fill(n) {
    if ([...this.device.options].some((o) => o.value === n.device)) this.device.value = n.device;
    this.perNode.value = n.devices_per_node;
    this.count.value = n.count;
    [this.intra.value, this.intraUs.value] = n.intra;
    [this.inter.value, this.interUs.value] = n.inter;
  }

  value() {
    return {
      device: this.device.value, devices_per_node: Number(this.perNode.value), count: Number(this.count.value),
      intra: { bandwidth: `${this.intra.value}GB/s`, latency: `${this.intraUs.value}us` },
      inter: { bandwidth: `${this.inter.value}Gbit/s`, latency: `${this.interUs.value}us` },
    };
  }
}

export class PlanForm {
  /** offer: what GET /plan/options answers. deps: {run(), cancel()} */
  constructor(offer, deps) {
    this.offer = offer;
    this.deps = deps;
    this.groups = [];
    this.build();
  }

  build() {
    this.alert = el("p", { class: "plan-error", role: "alert", hidden: true });
    this.button = el("button", { type: "submit", class: "primary" }, "Plan");
    this.bar = el("progress", { "aria-label": "How far the search is", hidden: true });
    this.status = el("p", { class: "plan-status muted", role: "status" });
    const set = (title, parts) => el("fieldset", {}, el("legend", {}, title), parts);
    this.node = el("form", { class: "plan-form", novalidate: true, "aria-label": "What to plan" },
      el("div", { class: "plan-sets" }, set("Model and machines", this.machines()), set("Requests", this.requests()), set("Limits", this.limits()), set("Schedules", this.schedules())),
      this.described, this.alert,
      el("div", { class: "plan-run" }, this.button, this.bar, this.status));
    this.node.addEventListener("submit", (e) => {
      e.preventDefault();
      if (this.running) this.deps.cancel();
      else this.deps.run();
    });
    this.node.addEventListener("input", (e) => e.target.removeAttribute("aria-invalid"));
    this.choose();
  }

  // ---- parts ----

  machines() {
    const { offer } = this;
    this.model = el("select", {}, option(offer.model, `${offer.model} (served here)`), el("optgroup", { label: "Known models" }, offer.models.map((m) => option(m))));
    this.cluster = el("select", {}, offer.measured && option(MEASURED, `This machine, measured (${offer.measured.machine})`),
      el("optgroup", { label: "Known machines" }, offer.clusters.map((c) => option(c.name, `${c.name}: ${devicesOf(c.nodes)}`))), option(DESCRIBED, "Described here …"));
    if (!offer.measured) this.cluster.value = "cpu-4x10g";
    this.cluster.addEventListener("change", () => this.choose());
    this.list = el("div", { class: "plan-groups" });
    this.more = el("button", { type: "button", class: "plain small", onclick: () => this.addGroup().device.focus() }, "Add nodes of another kind");
    this.described = el("section", { class: "plan-described", "aria-label": "Described machines" }, this.list, this.more);
    const cluster = field("cluster", "Machines", this.cluster, " ");
    this.clusterHelp = cluster.querySelector(".help");
    return [field("model", "Model", this.model), cluster];
  }

  /** What the chosen machines are, and their links. */
  aboutCluster() {
    const { measured, clusters } = this.offer, chosen = clusters.find((c) => c.name === this.cluster.value);
    if (this.cluster.value === MEASURED) {
      const workers = measured.cluster.nodes[0].devices_per_node;
      return `${measured.machine}: ${workers} ${workers === 1 ? "worker" : "workers"} of ${measured.threads} ${measured.threads === 1 ? "thread" : "threads"}, measured with ${measured.model}`;
    }
    if (!chosen) return "kinds of nodes and their links, below";
    const node = (n) => [`${n.count} × ${n.devices_per_node} ${n.device}`, n.devices_per_node > 1 && `${n.intra[0]} GB/s within`, n.count > 1 && `${n.inter[0]} Gbit/s between`].filter(Boolean).join(", ");
    return `${chosen.nodes.map(node).join("; ")}${chosen.priced ? "" : "; no prices"}`;
  }

  addGroup() {
    const group = new Group(this.groups.length, this.offer.devices, (g) => this.removeGroup(g));
    this.groups.push(group);
    this.list.append(group.node);
    this.more.disabled = this.groups.length >= MOST_GROUPS;
    return group;
  }

  removeGroup(group) {
    if (this.groups.length === 1) return;
    const values = this.groups.filter((g) => g !== group).map((g) => g.value());
    this.groups = [];
    this.list.replaceChildren();
    for (const v of values) {
      const g = this.addGroup();
      const first = (text) => parseFloat(text);
      g.fill({ ...v, intra: [first(v.intra.bandwidth), first(v.intra.latency)], inter: [first(v.inter.bandwidth), first(v.inter.latency)] });
    }
    this.more.focus();
  }

  /** Another choice shows what belongs to it. A description begins with the machines that were chosen before. */
  choose() {
    const described = this.cluster.value === DESCRIBED;
    this.described.hidden = !described;
    if (described && !this.groups.length) {
      const known = new Set(this.offer.devices.map((d) => d.name));
      const before = this.offer.clusters.find((c) => c.name === this.lastCluster && c.nodes.every((n) => known.has(n.device)));
      for (const n of before?.nodes ?? [null]) {
        const group = this.addGroup();
        if (n) group.fill(n);
      }
    }
    this.lastCluster = this.cluster.value;
    this.clusterHelp.textContent = this.aboutCluster();
    const lengths = this.workload.value === LENGTHS;
    for (const input of [this.input, this.output]) input.closest(".field").hidden = !lengths;
    const most = this.arrival.value;
    this.count.closest(".field").hidden = most === "all";
    this.count.closest(".field").querySelector("label").textContent = most === "closed" ? "Requests at once" : "Requests a second";
  }

  requests() {
    this.workload = select(option(LENGTHS, "Fixed lengths"), ...this.offer.workloads.map((w) => option(w, `${w} (a known mix)`)));
    this.workload.addEventListener("change", () => { this.arrival.disabled = this.workload.value !== LENGTHS; if (this.arrival.disabled) this.arrival.value = "all"; this.choose(); });
    this.input = number(512, { min: 1, step: 1 });
    this.output = number(128, { min: 1, step: 1 });
    this.arrival = select(option("all", "as many as fit"), option("closed", "so many at once"), option("poisson", "so many a second"));
    this.arrival.addEventListener("change", () => this.choose());
    this.count = number(64);
    return [field("workload", "Lengths", this.workload), field("input", "Prompt, tokens", this.input), field("output", "Answer, tokens", this.output),
      field("arrival", "How many", this.arrival), field("count", "Requests", this.count)];
  }

  limits() {
    this.tpot = number(200);
    this.ttft = number("", { placeholder: "none" });
    this.objective = select(...this.offer.objectives.map((o) => option(o, OBJECTIVES[o] ?? o)));
    return [field("objective", "Make most of", this.objective), field("tpot", "Time a token, ms", this.tpot, "at most, on average; empty: any"),
      field("ttft", "First token, ms", this.ttft, "at most; empty: any")];
  }

  schedules() {
    this.kinds = this.offer.schedules.map((name) => el("input", { type: "checkbox", value: name, checked: true }));
    this.runnable = el("input", { type: "checkbox" });
    return [el("div", { class: "plan-kinds" }, this.kinds.map((box) => el("label", { class: "check", title: scheduleText(box.value) }, box, box.value))),
      el("label", { class: "check plan-runnable" }, this.runnable, "only what runs today")];
  }

  // ---- the request ----

  clusterValue() {
    if (this.cluster.value !== DESCRIBED) return this.cluster.value;
    return { name: "described", nodes: this.groups.map((g) => g.value()) };
  }

  workloadValue() {
    if (this.workload.value !== LENGTHS) return this.workload.value;
    const arrival = this.arrival.value === "all" ? { closed: "full" } : { [this.arrival.value]: this.count.value };
    return { input: this.input.value, output: this.output.value, arrival };
  }

  value() {
    const body = { model: this.model.value, workload: this.workloadValue(), objective: this.objective.value };
    if (this.cluster.value === MEASURED) body.measured = true;
    else body.cluster = this.clusterValue();
    body.slo_tpot = this.tpot.value === "" ? "none" : `${this.tpot.value}ms`;
    if (this.ttft.value !== "") body.slo_ttft = `${this.ttft.value}ms`;
    const only = this.kinds.filter((k) => k.checked).map((k) => k.value);
    if (only.length < this.kinds.length) body.only = only;
    if (this.runnable.checked) body.runnable = true;
    return body;
  }

  // ---- what happens ----

  setRunning(running) {
    this.running = running;
    this.button.textContent = running ? "Cancel" : "Plan";
    this.button.className = running ? "plain" : "primary";
    this.bar.hidden = !running;
    this.bar.removeAttribute("value");
    if (running) this.showError(null);
  }

  say(text) {
    if (this.status.textContent !== text) this.status.textContent = text;
  }

  showProgress({ done, total }) {
    if (!total) return;
    this.bar.max = total;
    this.bar.value = done;
  }

  /** What the server refused, and the field that it names. */
  showError(error) {
    this.alert.hidden = !error;
    this.alert.textContent = error?.message ?? "";
    for (const marked of this.node.querySelectorAll("[aria-invalid]")) marked.removeAttribute("aria-invalid");
    const at = error && this.fieldOf(error);
    if (!at) return;
    at.setAttribute("aria-invalid", "true");
    at.focus();
  }

  fieldOf({ param, message }) {
    const inside = { input: this.input, output: this.output, closed: this.count, poisson: this.count, concurrency: this.count, rate: this.count };
    const group = this.groups[0];
    const parts = { devices_per_node: group?.perNode, count: group?.count, bandwidth: group?.intra, latency: group?.intraUs };
    const find = (names) => Object.entries(names).find(([name, input]) => input && message.includes(`${name}:`))?.[1];
    if (param === "workload") return find(inside) ?? this.workload;
    if (param === "cluster") return this.cluster.value === DESCRIBED ? find(parts) ?? group.count : this.cluster;
    if (!param && message.startsWith("requests of")) return this.input; // longer than the model's context
    return { model: this.model, objective: this.objective, slo_tpot: this.tpot, slo_ttft: this.ttft, only: this.kinds[0] }[param] ?? null;
  }
}
