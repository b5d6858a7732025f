// The list of conversations: open, rename, save as a file, delete.
import { byId, download, el, icon, iconButton, toast } from "./dom.js";
import { allConversations, asMarkdown, deleteConversation, restoreConversation, saveConversation } from "./store.js";

const fileName = (c, end) => `${(c.title || "conversation").replace(/[^\p{L}\p{N}]+/gu, "-").slice(0, 40)}.${end}`;

export class History {
  /** deps: {open(conversation), create(), current()} */
  constructor(deps) {
    this.deps = deps;
    this.list = el("ul", { class: "conversations" });
    const create = el("button", { type: "button", class: "new-chat", onclick: () => deps.create() }, icon("plus"), "New chat");
    byId("history").append(create, this.list);
    document.addEventListener("click", (e) => { if (!e.target.closest(".entry-menu, .entry-more")) this.closeMenus(); });
  }

  /** A menu or a name that is being written stays: the list is made anew when that is over. */
  async refresh() {
    const all = await allConversations();
    this.stale = this.list.querySelector(".entry-menu, .entry-rename") !== null;
    if (this.stale) return;
    const open = this.deps.current(); // the one that is shown is renamed and deleted itself, not its copy in the store
    this.list.replaceChildren(...all.map((c) => this.entry(c.id === open?.id ? open : c)));
  }

  entry(c) {
    const current = c.id === this.deps.current()?.id;
    const name = el("button", { type: "button", class: "entry-name", "aria-current": current ? "true" : null, onclick: () => this.deps.open(c) }, c.title || "Untitled");
    const more = iconButton("more", `More about ${c.title || "Untitled"}`, () => this.openMenu(item, more, c), { "aria-haspopup": "menu", "aria-expanded": "false" });
    more.classList.add("entry-more");
    const item = el("li", { class: current ? "entry current" : "entry" }, name, more);
    return item;
  }

  closeMenus() {
    for (const menu of this.list.querySelectorAll(".entry-menu")) menu.remove();
    for (const more of this.list.querySelectorAll(".entry-more")) more.setAttribute("aria-expanded", "false");
    if (this.stale) this.refresh();
  }

  openMenu(item, more, c) {
    const open = more.getAttribute("aria-expanded") === "true";
    this.closeMenus();
    if (open) return;
    const row = (name, text, run) => el("button", { type: "button", role: "menuitem", tabindex: "-1", onclick: () => { this.closeMenus(); run(); } }, icon(name), text);
    const menu = el("div", { class: "entry-menu", role: "menu" },
      row("edit", "Rename", () => this.rename(item, c)),
      row("save", "Save as Markdown", () => download(fileName(c, "md"), "text/markdown", asMarkdown(c))),
      row("save", "Save as JSON", () => download(fileName(c, "json"), "application/json", JSON.stringify(c, null, 2))),
      row("trash", "Delete", () => this.remove(c)));
    menu.addEventListener("keydown", (e) => this.onMenuKey(e, menu, more));
    more.setAttribute("aria-expanded", "true");
    item.append(menu);
    menu.firstChild.focus();
  }

  onMenuKey(e, menu, more) {
    const rows = [...menu.children], at = rows.indexOf(document.activeElement);
    const step = { ArrowDown: 1, ArrowUp: -1 }[e.key];
    if (step) rows[(at + step + rows.length) % rows.length].focus();
    else if (e.key === "Escape") { this.closeMenus(); more.focus(); }
    else if (e.key === "Tab") this.closeMenus();
    if (step || e.key === "Escape") e.preventDefault();
  }

  rename(item, c) {
    const field = el("input", { class: "entry-rename", "aria-label": "Name of the conversation", maxlength: "120" });
    let over = false;
    const end = async (keep) => {
      if (over) return;
      over = true;
      field.remove();
      if (keep && field.value.trim()) {
        c.title = field.value.trim();
        await saveConversation(c);
      }
      await this.refresh();
    };
    field.value = c.title;
    field.addEventListener("keydown", (e) => { if (e.key === "Enter" || e.key === "Escape") end(e.key === "Enter"); });
    field.addEventListener("blur", () => end(true));
    item.replaceChildren(field);
    field.select();
  }

  async remove(c) {
    await deleteConversation(c.id);
    if (this.deps.current()?.id === c.id) this.deps.create();
    await this.refresh();
    toast("Conversation deleted", { label: "Undo", run: async () => { await restoreConversation(c); await this.refresh(); } });
  }
}
