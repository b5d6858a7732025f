// Starts the page: navigation, theme, keys, what is served; hands the rest to its views.
import { ask, askAnyway, keyOf, keysAreKept, setKeys } from "./api.js";
import { Chat } from "./chat.js";
import { byId, icon, iconButton } from "./dom.js";
import { History } from "./history.js";
import { Live } from "./live.js";
import { Plan } from "./plan.js";
import { Settings } from "./settings.js";
import { newConversation, openStore, saveConversation, setSetting, setting } from "./store.js";

const HEALTH_EVERY_MS = 5000;
const THEMES = ["auto", "light", "dark"];
const HEALTH = { ok: "Serving", recovering: "Recovering", draining: "Draining" };

let model = null;
let chat, live, past, plan, settings;

// ---- frame ----

function showView() {
  const names = [...document.querySelectorAll("[data-view]")].map((a) => a.dataset.view);
  const asked = location.hash.slice(1); // or where the page is skipped to
  const name = names.includes(asked) ? asked : document.querySelector(".view:not([hidden])")?.id ?? names[0];
  for (const view of document.querySelectorAll(".view")) view.hidden = view.id !== name;
  for (const a of document.querySelectorAll("[data-view]")) {
    if (a.dataset.view === name) a.setAttribute("aria-current", "page");
    else a.removeAttribute("aria-current");
  }
  byId("history").hidden = name !== "chat";
  document.body.dataset.view = name;
  live.show(name === "live" && !document.hidden);
  plan.show(name === "plan");
  document.title = name === "chat" ? "Sluice" : `Sluice: ${name}`;
  showTitle(name);
  openRail(false);
}

function showTitle(name) {
  const current = chat.conversation.title || "New chat";
  const title = name === "chat" ? current : name[0].toUpperCase() + name.slice(1);
  byId("topbar-title").textContent = byId("view-title").textContent = title;
}

function openRail(open) {
  document.body.classList.toggle("with-rail", open);
  byId("scrim").hidden = !open;
  byId("open-rail").setAttribute("aria-expanded", String(open));
  if (open) byId("rail").querySelector("a, button").focus();
}

function setTheme(name) {
  setSetting("theme", name);
  if (name === "auto") delete document.documentElement.dataset.theme;
  else document.documentElement.dataset.theme = name;
  const button = byId("theme"), next = THEMES[(THEMES.indexOf(name) + 1) % THEMES.length];
  button.replaceChildren(icon({ auto: "auto", light: "sun", dark: "moon" }[name]));
  button.setAttribute("aria-label", `Theme: ${name}. Change to ${next}`);
  button.title = `Theme: ${name}`;
  button.onclick = () => setTheme(next);
}

function buildFrame() {
  byId("open-rail").append(icon("menu"));
  byId("open-rail").addEventListener("click", () => openRail(true));
  byId("scrim").addEventListener("click", () => openRail(false));
  byId("open-settings-top").append(icon("settings"));
  byId("open-key").append(icon("key"));
  byId("open-key").addEventListener("click", () => askForKeys());
  setTheme(setting("theme", "auto"));
  window.addEventListener("hashchange", showView);
  document.addEventListener("visibilitychange", showView);
  document.addEventListener("keydown", (e) => {
    if (e.key === "Escape" && document.body.classList.contains("with-rail")) openRail(false);
  });
}

// ---- keys ----

function askForKeys(why = null) {
  const dialog = byId("key-dialog");
  if (dialog.open) return;
  byId("key-why").textContent = why ?? "They stay in this browser and go to this server alone.";
  byId("api-key").value = keyOf("api");
  byId("admin-key").value = keyOf("admin");
  byId("keep-key").checked = keysAreKept();
  dialog.returnValue = "";
  dialog.showModal();
}

function buildKeys() {
  byId("key-cancel").addEventListener("click", () => byId("key-dialog").close());
  byId("key-dialog").addEventListener("close", () => {
    if (byId("key-dialog").returnValue !== "save") return;
    setKeys({ api: byId("api-key").value.trim(), admin: byId("admin-key").value.trim() }, byId("keep-key").checked);
    modelName().catch(onError);
    showView(); // the live view asks again
  });
}

function onError(e) {
  if (e.status === 401) askForKeys("This server wants a key. It stays in this browser and goes to this server alone.");
}

// ---- the server ----

/** The name of the model that is served. Throws ApiError. */
async function modelName() {
  if (model) return model;
  const list = await ask("v1/models");
  model = list.data[0].id;
  byId("served").textContent = model;
  return model;
}

async function showHealth() {
  let text = "Not reached", state = "away";
  try {
    const health = await askAnyway("health");
    state = health.status === "ok" ? "ok" : "busy";
    text = HEALTH[health.status] ?? health.status;
  } catch {
    // said by the text
  }
  const place = byId("health");
  place.dataset.state = state;
  if (place.textContent !== text) place.textContent = text;
}

function watchHealth() {
  showHealth();
  setInterval(() => { if (!document.hidden) showHealth(); }, HEALTH_EVERY_MS);
}

// ---- conversations ----

function openConversation(conversation) {
  chat.show(conversation);
  settings.showSystem(conversation.system);
  showTitle("chat");
  past.refresh();
  openRail(false);
  chat.area.focus();
}

function create() {
  openConversation(newConversation(setting("system", "")));
}

async function setSystem(text) {
  setSetting("system", text);
  chat.conversation.system = text;
  if (chat.conversation.messages.length) await saveConversation(chat.conversation);
}

function buildChat() {
  settings = new Settings({ setSystem, toolsChanged: () => chat.showTools() });
  chat = new Chat({
    place: byId("chat"), model: modelName, system: () => setting("system", ""),
    settings: () => settings.request(), ready: () => settings.ready(), tools: () => settings.tools.names(), openTools: () => settings.openTools(),
    onChange: () => { past.refresh(); showTitle("chat"); }, onError,
    onAnswer: (message, running) => live.showAnswer(message, running),
  });
  past = new History({ open: openConversation, create, current: () => chat.conversation });
  const opener = iconButton("settings", "Settings", null, { "aria-expanded": "false", "aria-controls": "settings", class: "icon-button float-settings" });
  byId("chat").append(opener);
  settings.addOpener(opener);
  settings.addOpener(byId("open-settings-top"));
  settings.showSystem(chat.conversation.system);
}

async function start() {
  buildFrame();
  buildKeys();
  await openStore();
  buildChat();
  live = new Live({ place: byId("live"), onError });
  plan = new Plan({ place: byId("plan"), onError });
  await past.refresh();
  showView();
  watchHealth();
  chat.area.focus();
  await modelName().catch(onError);
}

start();
