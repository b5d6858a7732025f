// Markdown of a model's answer to DOM nodes. Text becomes text nodes, links get schemes that are safe, images
// become links: nothing that a model writes runs or fetches anything.
import { codeBlock, el } from "./dom.js";

const SAFE = /^(?:https?:|mailto:)/i;
const DEEPEST = 8;

// ---- blocks: lines to {kind, ...} ----

const FENCE = /^ {0,3}(`{3,}|~{3,})\s*([^`]*)$/;
const HEADING = /^ {0,3}(#{1,6})\s+(.*)$/;
const RULE = /^ {0,3}(?:(?:\*\s*){3,}|(?:-\s*){3,}|(?:_\s*){3,})$/;
const QUOTE = /^ {0,3}> ?/;
const ITEM = /^( *)(?:([-*+])|(\d{1,9})[.)])(?:\s+(.*)|)$/;
const DIVIDER = /^\s*\|?\s*:?-+:?\s*(?:\|\s*:?-+:?\s*)*\|?\s*$/;

/** Splits a text into blocks. Each has `source`, the lines it was made of. */
export function blocksOf(text) {
  const lines = text.replace(/\r\n?/g, "\n").split("\n");
  const blocks = [];
  for (let at = 0; at < lines.length;) {
    if (!lines[at].trim()) {
      at++;
      continue;
    }
    const block = takeBlock(lines, at);
    block.source = lines.slice(at, block.end).join("\n");
    blocks.push(block);
    at = block.end;
  }
  return blocks;
}

/** A heading's text without the signs that close it. By hand: an expression would take the cube of a run of spaces. */
function withoutEnd(text) {
  let end = text.trimEnd();
  while (end.endsWith("#")) end = end.slice(0, -1);
  return end.trimEnd();
}

function takeBlock(lines, at) {
  const line = lines[at];
  const heading = HEADING.exec(line);
  if (FENCE.test(line)) return takeFence(lines, at);
  if (heading) return { kind: "heading", level: heading[1].length, text: withoutEnd(heading[2]), end: at + 1 };
  if (RULE.test(line)) return { kind: "rule", end: at + 1 };
  if (QUOTE.test(line)) return takeQuote(lines, at);
  if (ITEM.test(line)) return takeList(lines, at);
  if (startsTable(lines, at)) return takeTable(lines, at);
  return takeParagraph(lines, at);
}

const startsTable = (lines, at) => lines[at].includes("|") && at + 1 < lines.length && lines[at + 1].includes("-") &&
  DIVIDER.test(lines[at + 1]) && cellsOf(lines[at]).length === cellsOf(lines[at + 1]).length;

function takeFence(lines, at) {
  const [, mark, language] = FENCE.exec(lines[at]);
  let end = at + 1;
  const closes = (line) => line.trim().length >= mark.length && [...line.trim()].every((c) => c === mark[0]);
  while (end < lines.length && !closes(lines[end])) end++;
  const code = lines.slice(at + 1, end).join("\n");
  return { kind: "code", language: language.trim().split(/\s/)[0], code, end: Math.min(end + 1, lines.length) };
}

function takeQuote(lines, at) {
  let end = at;
  while (end < lines.length && lines[end].trim() && (QUOTE.test(lines[end]) || !interrupts(lines, end))) end++;
  return { kind: "quote", text: lines.slice(at, end).map((l) => l.replace(QUOTE, "")).join("\n"), end };
}

const interrupts = (lines, at) => FENCE.test(lines[at]) || HEADING.test(lines[at]) || RULE.test(lines[at]) ||
  QUOTE.test(lines[at]) || ITEM.test(lines[at]);

function takeParagraph(lines, at) {
  let end = at + 1;
  while (end < lines.length && lines[end].trim() && !interrupts(lines, end) && !startsTable(lines, end)) end++;
  return { kind: "paragraph", text: lines.slice(at, end).join("\n"), end };
}

const indentOf = (line) => /^ */.exec(line)[0].length;

/** Items of one list: each goes on while lines are empty or further in than its mark. */
function takeList(lines, at) {
  const first = ITEM.exec(lines[at]);
  const ordered = first[3] !== undefined;
  const items = [];
  let end = at, loose = false;
  while (end < lines.length) {
    const item = ITEM.exec(lines[end]);
    if (!item || item[1].length > first[1].length + 1 || (item[3] !== undefined) !== ordered || RULE.test(lines[end])) break;
    const inside = item[1].length + 1;
    const body = [item[4] ?? ""];
    const hangs = (i) => indentOf(lines[i]) > inside - 1 && lines[i].trim();
    for (end++; end < lines.length; end++) {
      const blank = !lines[end].trim();
      if (blank && !(end + 1 < lines.length && hangs(end + 1))) break;
      if (!blank && !hangs(end) && interrupts(lines, end)) break;
      body.push(lines[end]);
    }
    items.push(outdent(body));
    const next = end;
    while (end < lines.length && !lines[end].trim()) end++;
    loose = loose || (end > next && end < lines.length && ITEM.test(lines[end]));
  }
  return { kind: "list", ordered, start: Number(first[3] ?? 1), items, loose, end };
}

function outdent([first, ...rest]) {
  const least = Math.min(...rest.filter((l) => l.trim()).map(indentOf));
  return [first, ...rest.map((l) => l.slice(Math.min(least, indentOf(l))))].join("\n");
}

function cellsOf(line) {
  const inner = line.trim().replace(/^\|/, "").replace(/(^|[^\\])\|$/, "$1");
  return inner.split(/(?<!\\)\|/).map((c) => c.trim().replace(/\\\|/g, "|"));
}

function takeTable(lines, at) {
  const align = cellsOf(lines[at + 1]).map((c) => (c.endsWith(":") ? (c.startsWith(":") ? "center" : "right") : "left"));
  let end = at + 2;
  while (end < lines.length && lines[end].includes("|") && lines[end].trim()) end++;
  return { kind: "table", head: cellsOf(lines[at]), align, rows: lines.slice(at + 2, end).map(cellsOf), end };
}

// ---- inline: text to nodes ----

// One look at what may begin here; what it does not know is text.
const INLINE = /(\\[!-/:-@[-`{-~])|(`+)|(\*\*|__)(?=\S)|(~~)(?=\S)|([*_])(?=\S)|(!?\[)|(https?:\/\/[^\s<>()]*[^\s<>().,;:!?'"*_~])|( {2,}\n|\n)/g;

/** Nodes of a text with emphasis, code, links. */
function inline(text, depth = 0) {
  const nodes = [];
  let at = 0;
  const look = new RegExp(INLINE);
  const plain = (to) => { if (to > at) nodes.push(text.slice(at, to)); };
  for (let found; depth < DEEPEST && (found = look.exec(text));) {
    const made = span(text, found, depth);
    if (!made) continue;
    plain(found.index);
    nodes.push(made.node);
    at = look.lastIndex = made.end;
  }
  plain(text.length);
  return nodes;
}

/** What begins at a match: {node, end}, or null when it is text after all. */
function span(text, found, depth) {
  const [all, escaped, ticks, strong, gone, em, bracket, url, end] = found;
  const after = found.index + all.length;
  if (escaped) return { node: escaped[1], end: after };
  if (ticks) return codeSpan(text, found.index, ticks);
  if (strong) return emphasis(text, found.index, strong, "strong", depth);
  if (gone) return emphasis(text, found.index, gone, "s", depth);
  if (em) return emphasis(text, found.index, em, "em", depth);
  if (bracket) return linkSpan(text, found.index + bracket.length - 1, depth);
  if (url) return { node: link(url, [url]), end: after };
  return { node: end.length > 1 ? el("br") : "\n", end: after };
}

function codeSpan(text, from, ticks) {
  const close = new RegExp(`(?<!\`)${ticks}(?!\`)`, "g");
  close.lastIndex = from + ticks.length;
  const found = close.exec(text);
  if (!found) return null;
  const code = text.slice(from + ticks.length, found.index).replace(/\n/g, " ").replace(/^ (.*\S.*) $/, "$1");
  return { node: el("code", {}, code), end: found.index + ticks.length };
}

const isWord = (c) => c !== undefined && /[\p{L}\p{N}]/u.test(c);

function emphasis(text, from, mark, tag, depth) {
  if (mark[0] === "_" && isWord(text[from - 1])) return null;
  const inside = from + mark.length;
  for (let to = text.indexOf(mark, inside + 1); to > 0; to = text.indexOf(mark, to + 1)) {
    const doubled = text[to + mark.length] === mark[0] || (mark.length === 1 && text[to - 1] === mark);
    if (doubled || /[\s\\]/.test(text[to - 1]) || (mark[0] === "_" && isWord(text[to + mark.length]))) continue;
    return { node: el(tag, {}, inline(text.slice(inside, to), depth + 1)), end: to + mark.length };
  }
  return null;
}

/** [label](target "title"); of an image, too. */
function linkSpan(text, from, depth) {
  const found = /^\[((?:[^[\]\\]|\\.|\[[^\]]*\])*)\]\(\s*<?((?:[^\s<>()]|\([^\s<>()]*\))*)>?(?:\s+["'(][^"')]*["')])?\s*\)/.exec(text.slice(from, from + 4096));
  if (!found) return null;
  const label = found[1] ? inline(found[1], depth + 1) : [found[2]];
  const node = SAFE.test(found[2]) ? link(found[2], label) : el("span", {}, label);
  return { node, end: from + found[0].length };
}

function link(url, children) {
  return el("a", { href: url, target: "_blank", rel: "noopener noreferrer nofollow" }, children);
}

// ---- blocks to nodes ----

function list(block, depth) {
  const item = (text) => {
    const parts = blocksOf(text);
    const tight = !block.loose && parts[0]?.kind === "paragraph";
    const first = tight ? inline(parts.shift().text) : [];
    return el("li", {}, first, parts.map((b) => nodeOf(b, depth + 1)));
  };
  const start = block.ordered && block.start !== 1 ? String(block.start) : null;
  return el(block.ordered ? "ol" : "ul", { start }, block.items.map(item));
}

function tableOf(block) {
  const cell = (tag) => (text, i) => el(tag, { class: `to-${block.align[i] ?? "left"}`, scope: tag === "th" ? "col" : null }, inline(text));
  const row = (cells) => el("tr", {}, cells.slice(0, block.head.length).map(cell("td")));
  return el("div", { class: "table-scroll", tabindex: "0", role: "region", "aria-label": "Table" },
    el("table", {}, el("thead", {}, el("tr", {}, block.head.map(cell("th")))), el("tbody", {}, block.rows.map(row))));
}

/** One block as a node. Headings of answers stand below those of the page. */
function nodeOf(block, depth = 0) {
  if (depth > DEEPEST) return el("p", {}, block.source ?? "");
  switch (block.kind) {
  case "code": return codeBlock(block.language || "text", block.language ? `Code in ${block.language}` : "Code", "Copy code", block.code);
  case "heading": return el(`h${Math.min(block.level + 1, 6)}`, { class: `level-${block.level}` }, inline(block.text));
  case "rule": return el("hr");
  case "quote": return el("blockquote", {}, blocksOf(block.text).map((b) => nodeOf(b, depth + 1)));
  case "list": return list(block, depth);
  case "table": return tableOf(block);
  default: return el("p", {}, inline(block.text));
  }
}

/** Shows a text that grows: blocks that have not changed keep their nodes, with selection and focus in them. */
export function renderInto(place, text) {
  const shown = place.shownBlocks ?? [];
  const blocks = blocksOf(text);
  blocks.forEach((block, i) => {
    const same = shown[i] && shown[i].source === block.source && shown[i].kind === block.kind;
    block.node = same ? shown[i].node : nodeOf(block);
    if (same) return;
    if (shown[i]) shown[i].node.replaceWith(block.node);
    else place.append(block.node);
  });
  shown.slice(blocks.length).forEach((block) => block.node.remove());
  place.shownBlocks = blocks;
}
