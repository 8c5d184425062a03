// Actions on the list of conversations: search, rename, pin, delete and undo, import and export.
import { inWords } from "../common/api";
import { saveConversation, saveFile } from "../common/download";
import { bytes } from "../common/numbers";
import { AnswerFailure } from "./service";
import type { Entry, Shelf, TabShelf } from "./shelf";
import { type State, newId } from "./state";
import { asMarkdown, exported, imported } from "./transfer";

const SEARCH_AFTER_MS = 200;
const UNDO_MS = 10_000;
/** The interval of refreshing the list while an answer is generated in a chat that is not open. */
const LIST_AGAIN_MS = 4000;
const KEPT = "redoubt.kept";
/** How many conversations are listed before anybody scrolls to them. */
const MOST_UNASKED = 1000;
const MOST_IMPORTED_BYTES = 64e6;

type Timer = ReturnType<typeof setTimeout> | undefined;

/** Whether this browser keeps a guest's chats when the tab is closed. */
export const isKeptHere = () => localStorage.getItem(KEPT) === "yes";

/** The open chat, as far as the list needs it. */
interface Open {
  readonly state: State;
  readonly shelf: Shelf;
  readonly tab: TabShelf;
  readonly storage: Storage;
  readonly others: BroadcastChannel;
  set(values: Partial<State>): void;
  open(id: string): Promise<void>;
  newChat(): void;
  flush(): void;
}

export class Conversations {
  private leaving: Timer;
  private searching: Timer;
  private listing: Timer;
  /** The number of lists asked for, and the one that is shown: an older one that comes later is not. */
  private asked = 0;
  private shown = 0;
  /** What the next part of the list is asked for after; empty: there is none. */
  private after = "";
  private loading: Promise<void> | null = null;
  /** The words of the list that is shown. */
  private listed = "";

  constructor(private readonly chat: Open) {}

  /** Searches once typing pauses: each search reads everything stored. */
  search(words: string): void {
    this.chat.set({ words });
    clearTimeout(this.searching);
    this.searching = setTimeout(() => void this.list(), SEARCH_AFTER_MS);
  }

  /** Loads the beginning of the list anew; what was loaded after it stays. */
  async list(): Promise<void> {
    const { words } = this.chat.state;
    const number = ++this.asked;
    const found = await this.chat.shelf.list(words, "").catch(() => null);
    if (number < this.shown) return;
    if (found !== null && words === this.chat.state.words) {
      this.shown = number;
      const isSame = words === this.listed;
      const older = isSame && found.after ? olderThan(found.entries, this.chat.state.entries) : [];
      if (!older.length) this.after = found.after;
      this.listed = words;
      this.chat.set({ entries: [...found.entries, ...older], hasMore: this.after !== "" });
      if (!words && this.after) void this.loadPart();
    }
    clearTimeout(this.listing);
    const isAnswering = found?.entries.some((one) => one.isAnswering && one.id !== this.chat.state.id) ?? false;
    if (isAnswering) this.listing = setTimeout(() => void this.list(), LIST_AGAIN_MS);
  }

  /** Loads the next part of the list. */
  more(): Promise<void> {
    this.loading ??= this.loadMore().finally(() => (this.loading = null));
    return this.loading;
  }

  private async loadMore(): Promise<void> {
    const { after, listed: words, shown } = this;
    if (!after) return;
    const found = await this.chat.shelf.list(words, after).catch(() => null);
    if (words !== this.listed || after !== this.after) return;
    if (found === null && shown === this.shown) this.after = ""; // until the list is loaded anew
    if (found !== null) {
      this.after = found.after;
      const known = new Set(this.chat.state.entries.map((one) => one.id));
      this.chat.set({ entries: [...this.chat.state.entries, ...found.entries.filter((one) => !known.has(one.id))] });
    }
    this.chat.set({ hasMore: this.after !== "" });
  }

  /** Loads what most people have, so that pinned chats are at the top; the rest comes when it is scrolled to. */
  private async loadPart(): Promise<void> {
    while (this.after && !this.listed && this.chat.state.entries.length < MOST_UNASKED) await this.more();
  }

  /** Whether this browser keeps a guest's chats when the tab is closed. */
  keepHere(isKept: boolean): void {
    this.chat.flush();
    if (!this.moveTo(isKept)) return;
    if (isKept) localStorage.setItem(KEPT, "yes");
    else localStorage.removeItem(KEPT);
  }

  /** Applies a change made in another tab. */
  follow(): void {
    addEventListener("storage", ({ key, newValue }) => {
      if (key === KEPT) this.moveTo(newValue === "yes");
    });
  }

  private moveTo(isKept: boolean): boolean {
    const isMoved = this.chat.tab.moveTo(isKept ? localStorage : this.chat.storage);
    this.chat.set(isMoved ? { isKept } : { notice: "There is no room for your chats: delete or export some first." });
    void this.list();
    return isMoved;
  }

  /** Saves a chat as a file. */
  async saveAs(entry: Entry, kind: "md" | "json"): Promise<void> {
    if (this.chat.state.user) {
      await saveConversation(entry.id, kind).catch((error: unknown) => this.chat.set({ notice: inWords(error) }));
      return;
    }
    this.chat.flush();
    const tree = await this.chat.tab.open(entry.id);
    const text = kind === "md" ? asMarkdown(entry.title, tree) : exported(entry.title, tree);
    const content = new Blob([text], { type: kind === "md" ? "text/markdown" : "application/json" });
    saveFile(content, `${entry.title.replace(/[^\p{L}\p{N} _-]/gu, "").trim() || "chat"}.${kind}`);
  }

  /** Imports a file, and opens its first conversation. */
  async takeIn(file: File): Promise<void> {
    try {
      if (file.size > MOST_IMPORTED_BYTES) throw new Error(`The file is larger than ${bytes(MOST_IMPORTED_BYTES)}.`);
      const found = imported(await file.text(), newId);
      const ids: string[] = [];
      try {
        for (const { title, tree } of found) ids.push(await this.chat.shelf.add(title, tree));
      } catch (error) {
        for (const id of ids) await this.chat.shelf.discard(id).catch(() => undefined);
        const reason = error instanceof Error ? error.message : "That did not work.";
        throw new Error(`Nothing was imported. ${reason}`, { cause: error });
      } finally {
        this.chat.others.postMessage("");
        await this.list();
      }
      if (ids[0] !== undefined) await this.chat.open(ids[0]);
      this.chat.set({ notice: found.length === 1 ? "One chat was imported." : `${found.length} chats were imported.` });
    } catch (error) {
      this.chat.set({ notice: error instanceof Error ? error.message : "That did not work." });
    }
  }

  async rename(entry: Entry, title: string): Promise<void> {
    await this.told(async () => title.trim() && this.chat.shelf.rename(entry, title.trim()));
  }

  async pin(entry: Entry): Promise<void> {
    await this.told(() => this.chat.shelf.pin(entry, !entry.isPinned));
  }

  /** Deletes now: the store allows `undo` for ten seconds, without this page. */
  async remove(entry: Entry): Promise<void> {
    clearTimeout(this.leaving);
    if (entry.id === this.chat.state.id) this.chat.newChat();
    this.shown = ++this.asked; // a list that is on its way still has it
    this.chat.set({ leaving: null, entries: this.chat.state.entries.filter((one) => one.id !== entry.id) });
    if (!(await this.told(() => this.chat.shelf.remove(entry.id), entry.id))) return;
    this.chat.set({ leaving: entry });
    this.leaving = setTimeout(() => this.chat.set({ leaving: null }), UNDO_MS);
  }

  async undo(): Promise<void> {
    const { leaving } = this.chat.state;
    clearTimeout(this.leaving);
    this.chat.set({ leaving: null });
    if (leaving) await this.told(() => this.chat.shelf.restore(leaving.id));
  }

  /** Changes the stored conversations, after which all tabs refresh their lists. Returns whether it succeeded. */
  async told(change: () => Promise<unknown>, changed = this.chat.state.id): Promise<boolean> {
    const isMade = await change().then(
      () => true,
      (error: unknown) => {
        this.chat.set({ notice: error instanceof AnswerFailure ? error.message : "That did not work." });
        return false;
      },
    );
    this.chat.others.postMessage(changed);
    await this.list();
    return isMade;
  }
}

/** What was listed before and is older than the beginning of the list. */
function olderThan(first: Entry[], listed: Entry[]): Entry[] {
  const ids = new Set(first.map((one) => one.id));
  const sinceMs = first.at(-1)?.updatedAtMs ?? 0;
  return listed.filter((one) => one.updatedAtMs <= sinceMs && !ids.has(one.id));
}
