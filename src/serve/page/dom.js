// Makes elements. Text is always a text node: nothing in this page is parsed as HTML.

const SVG = "http://www.w3.org/2000/svg";

/** An element with attributes (onNAME: a listener; true: present; null, false: absent) and children. */
export function el(tag, attributes = {}, ...children) {
  return fill(document.createElement(tag), attributes, children);
}

export function svg(tag, attributes = {}, ...children) {
  return fill(document.createElementNS(SVG, tag), attributes, children);
}

function fill(node, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
    else node.setAttribute(name, value === true ? "" : value);
  }
  node.append(...children.flat().filter((c) => c !== null && c !== undefined && c !== false));
  return node;
}

const PATHS = {
  menu: "M4 7h16M4 12h16M4 17h16",
  tool: "M14.700 5.200a4.300 4.300 0 0 0-5 5.700L4.500 16.100a2 2 0 0 0 0 2.800l.6.6a2 2 0 0 0 2.800 0l5.200-5.200a4.300 4.300 0 0 0 5.700-5l-2.700 2.700-2.900-.7-.7-2.900z",
  pause: "M9 6v12M15 6v12",
  play: "M8 5.5l11 6.5-11 6.5z",
  close: "M6 6l12 12M18 6L6 18",
  plus: "M12 5v14M5 12h14",
  send: "M12 19V5M6 11l6-6 6 6",
  stop: "M8 8h8v8H8z",
  copy: "M9 9h10v11H9zM15 9V5H5v11h4",
  check: "M5 12.500l4.5 4.500L19 7.5",
  edit: "M4 20h4L19 9l-4-4L4 16zM13.5 6.500l4 4",
  retry: "M5 12a7 7 0 1 0 2.2-5.100M5 4v4.500h4.5",
  more: "M6 12h.01M12 12h.01M18 12h.01",
  trash: "M5 7h14M10 7V4h4v3M7 7l1 13h8l1-13",
  save: "M12 4v11M7 11l5 5 5-5M5 20h14",
  key: "M4 12a4 4 0 1 0 8 0 4 4 0 1 0-8 0M12 12h8.5v3.5M16.5 12v2.5",
  settings: "M4 8h8M18 8h2M4 16h2M12 16h8M15 5.500v5M9 13.500v5",
  chance: "M5 20V12M10 20V5M15 20v-9M20 20v-5",
  sun: "M12 8a4 4 0 1 0 0 8 4 4 0 0 0 0-8M12 2.500v2M12 19.500v2M2.5 12h2M19.5 12h2M5.3 5.300l1.4 1.400M17.3 17.300l1.4 1.400M5.3 18.700l1.4-1.400M17.3 6.700l1.4-1.4",
  moon: "M19.5 14.500A8 8 0 0 1 9.5 4.500a8 8 0 1 0 10 10z",
  auto: "M12 3.500a8.5 8.5 0 1 0 0 17zM12 3.500a8.5 8.5 0 0 1 0 17",
};

/** A line drawing of 24 by 24 that takes the colour of the text; screen readers skip it. */
export function icon(name) {
  return svg("svg", { viewBox: "0 0 24 24", class: "icon", "aria-hidden": "true" }, svg("path", { d: PATHS[name] }));
}

/** A button that shows an icon; its label is read out and shown as a tooltip. */
export function iconButton(name, label, onclick, attributes = {}) {
  return el("button", { type: "button", class: "icon-button", "aria-label": label, title: label, onclick, ...attributes }, icon(name));
}

export const byId = (id) => document.getElementById(id);

/** A field for text as high as what is in it, to a limit that the style sheet sets. */
export function fitText(area) {
  area.style.height = "auto";
  area.style.height = `${area.scrollHeight + area.offsetHeight - area.clientHeight}px`;
}

/** Says it to screen readers alone. */
export function announce(text) {
  byId("announcer").textContent = text;
}

/** A note at the bottom for some seconds, with one action at most. */
export function toast(text, action = null, seconds = 6) {
  const note = el("div", { class: "toast" }, el("span", {}, text));
  const remove = () => note.remove();
  if (action) {
    const act = () => { remove(); action.run(); };
    note.append(el("button", { type: "button", class: "link", onclick: act }, action.label));
  }
  byId("toasts").append(note);
  setTimeout(remove, 1000 * seconds);
}

/** Text to the clipboard, also where the page came over plain HTTP and has no clipboard of its own. */
export async function copyText(text) {
  if (navigator.clipboard) {
    await navigator.clipboard.writeText(text);
    return;
  }
  const area = el("textarea", { class: "unseen", "aria-hidden": "true" });
  area.value = text;
  document.body.append(area);
  area.select();
  document.execCommand("copy");
  area.remove();
}

const COPIED_MS = 1500;

/** Copies a text, and shows so on the button for a moment. */
export async function copyBy(button, text) {
  await copyText(text);
  announce("Copied");
  button.replaceChildren(icon("check"));
  setTimeout(() => button.replaceChildren(icon("copy")), COPIED_MS);
}

/** A text as it stands, with a title and a button that copies it. The text is that of `code` in it. */
export function codeBlock(title, name, copyLabel, text = "") {
  const code = el("code", {}, text);
  const copy = iconButton("copy", copyLabel, () => copyBy(copy, code.textContent));
  return el("div", { class: "code-block" }, el("div", { class: "code-bar" }, el("span", {}, title), copy),
    el("pre", { tabindex: "0", role: "region", "aria-label": name }, code));
}

/** A file of the browser's downloads. */
export function download(name, type, text) {
  const url = URL.createObjectURL(new Blob([text], { type }));
  el("a", { href: url, download: name }).click();
  setTimeout(() => URL.revokeObjectURL(url), 1000);
}
