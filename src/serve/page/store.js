// Conversations and settings, kept in this browser alone. Where it keeps nothing (private windows), they last
// as long as the page.

import { endsInCalls } from "./answer.js";

const memory = new Map();
const deleted = new Set(); // ids: an answer that is still being made must not bring its conversation back
let database = null;

function promise(request) {
  return new Promise((resolve, reject) => {
    request.onsuccess = () => resolve(request.result);
    request.onerror = () => reject(request.error);
  });
}

export async function openStore() {
  try {
    const request = indexedDB.open("sluice", 1);
    request.onupgradeneeded = () => request.result.createObjectStore("conversations", { keyPath: "id" });
    database = await promise(request);
  } catch {
    database = null;
  }
}

const table = (mode) => database.transaction("conversations", mode).objectStore("conversations");

/** All conversations, the latest first. */
export async function allConversations() {
  const all = database ? await promise(table("readonly").getAll()) : [...memory.values()];
  return all.sort((a, b) => b.updated - a.updated);
}

export async function saveConversation(conversation) {
  if (deleted.has(conversation.id)) return;
  conversation.updated = Date.now();
  if (database) await promise(table("readwrite").put(structuredClone(conversation)));
  else memory.set(conversation.id, conversation);
}

export async function deleteConversation(id) {
  deleted.add(id);
  if (database) await promise(table("readwrite").delete(id));
  else memory.delete(id);
}

export async function restoreConversation(conversation) {
  deleted.delete(conversation.id);
  await saveConversation(conversation);
}

export function newConversation(system) {
  const random = crypto.getRandomValues(new Uint32Array(4));
  const id = [...random].map((n) => n.toString(16).padStart(8, "0")).join("");
  return { id, title: "", system, messages: [], created: Date.now(), updated: Date.now() };
}

/** A value of the settings, or what it is without one. */
export function setting(name, otherwise) {
  try {
    return JSON.parse(localStorage.getItem(`sluice.${name}`)) ?? otherwise;
  } catch {
    return otherwise;
  }
}

export function setSetting(name, value) {
  localStorage.setItem(`sluice.${name}`, JSON.stringify(value));
}

/** Text as it stands, whatever backticks are in it. */
function fenced(text) {
  const longest = Math.max(2, ...(text.match(/`+/g) ?? []).map((run) => run.length));
  const fence = "`".repeat(longest + 1);
  return `${fence}\n${text}\n${fence}`;
}

/** A conversation as a document to read. */
export function asMarkdown(conversation) {
  const parts = [`# ${conversation.title || "Conversation"}`];
  if (conversation.system) parts.push(`**System**\n\n${conversation.system}`);
  for (const m of conversation.messages) {
    parts.push(`**${m.role === "user" ? "You" : "Model"}**`);
    if (m.content || !m.calls?.length) parts.push(m.content);
    for (const call of m.calls ?? []) parts.push(`Call of \`${call.name}\`:`, fenced(call.arguments), ...(endsInCalls(m) ? ["Result:", fenced(call.result)] : []));
  }
  return parts.join("\n\n") + "\n";
}
