// Stores conversations in the browser, for one tab or permanently. Knows no page.
import type { Settings } from "./chat_settings";
import { type Tree, isAhead, joined, path, restored } from "./tree";

export interface Entry {
  id: string;
  title: string;
  /** Unix milliseconds. */
  updatedAtMs: number;
  isPinned: boolean;
  /** Whether an answer is being generated in it. */
  isAnswering?: boolean;
  /** In a list of what was searched: the text around what was found; absent: the title has it. */
  passage?: string;
}

/** A part of a list of conversations. */
export interface Listed {
  entries: Entry[];
  /** What the next part is asked for after; empty: this is the last one. */
  after: string;
}

/** A store of conversations. */
export interface Shelf {
  /** Last updated first. `words` are searched in titles and texts. after: of the part before; empty: from the first one. */
  list(words: string, after: string): Promise<Listed>;
  open(id: string): Promise<Tree>;
  rename(entry: Entry, title: string): Promise<void>;
  pin(entry: Entry, isPinned: boolean): Promise<void>;
  remove(id: string): Promise<void>;
  /** Removes a conversation for good. */
  discard(id: string): Promise<void>;
  /** Restores a conversation that was removed some seconds ago. */
  restore(id: string): Promise<void>;
  /** Stores an imported conversation under a new id. */
  add(title: string, tree: Tree): Promise<string>;
}

interface Kept extends Entry {
  tree: Tree;
  settings?: Settings;
}

export const KEY = "redoubt.conversations";

/** Conversations of one tab, deleted when it is closed; or of a browser, if the user wants that. */
export class TabShelf implements Shelf {
  private removed: Kept | undefined;
  /** Each conversation as this tab and the storage last agreed on it. */
  private readonly joins = new Map<string, Tree>();
  /** What this tab has written last: another tab has written nothing since if that is still there. */
  private written = "";

  constructor(
    private storage: Storage,
    private readonly newId: () => string,
  ) {}

  async list(words: string): Promise<Listed> {
    const wanted = words.trim().toLowerCase();
    const all = Object.values(this.read()).sort((one, other) => other.updatedAtMs - one.updatedAtMs);
    return { entries: wanted ? all.flatMap((one) => foundIn(one, wanted)) : all, after: "" };
  }

  async open(id: string): Promise<Tree> {
    const tree = restored(this.read()[id]?.tree);
    if (tree === null) throw new Error("There is no such conversation.");
    this.joins.set(id, tree);
    return tree;
  }

  /** The settings of a conversation; null: it has none of its own. */
  settingsOf(id: string): Settings | null {
    return this.read()[id]?.settings ?? null;
  }

  /**
   * Returns a conversation with what another tab has changed in it, and whether the storage's is behind it; null: it is there no
   * more. written: what the other tab has written. Its write may have been covered by one of this tab, which had not seen it.
   */
  joinedWith(id: string, tree: Tree, written: string | null = null): { tree: Tree; isMore: boolean } | null {
    const there = restored(this.read()[id]?.tree, true);
    if (there === null) return null;
    const base = this.joins.get(id) ?? tree;
    const told = restored(this.covered(written)[id]?.tree, true);
    const whole = joined(told === null ? tree : joined(tree, told, base), there, base);
    this.joins.set(id, whole);
    return { tree: whole, isMore: isAhead(whole, there) };
  }

  /** Takes from what another tab has written the conversations that are newer there: a write of this tab may have covered them. */
  takeNewer(written: string | null): void {
    const there = Object.values(this.covered(written));
    if (!there.length) return;
    const all = this.read();
    const newer = there.filter(({ id, updatedAtMs }) => updatedAtMs > (all[id]?.updatedAtMs ?? Infinity));
    if (newer.length) this.write({ ...all, ...Object.fromEntries(newer.map((one) => [one.id, one])) });
  }

  /** What another tab has written, unless the storage still has it as it was written. */
  private covered(written: string | null): Record<string, Kept> {
    return written === this.storage.getItem(KEY) ? {} : parsedKept(written);
  }

  /**
   * Runs what reads the storage and writes it again, while no other tab does: timed saves and changes of the list. A browser has locks only for pages from https and
   * from its own machine: it runs at once without.
   */
  async alone<Value>(change: () => Value): Promise<Value> {
    const isShared = this.storage === globalThis.localStorage && navigator.locks !== undefined;
    return isShared ? ((await navigator.locks.request(KEY, change)) as Value) : change();
  }

  /** Whether this tab has stored or opened a conversation. */
  hasHad(id: string): boolean {
    return this.joins.has(id);
  }

  async rename(entry: Entry, title: string): Promise<void> {
    await this.alone(() => this.change(entry.id, { title }));
  }

  async pin(entry: Entry, isPinned: boolean): Promise<void> {
    await this.alone(() => this.change(entry.id, { isPinned }));
  }

  async remove(id: string): Promise<void> {
    await this.alone(() => {
      const { [id]: removed, ...others } = this.read();
      this.removed = removed;
      this.write(others);
    });
  }

  async discard(id: string): Promise<void> {
    await this.alone(() => {
      const { [id]: _, ...others } = this.read();
      this.write(others);
    });
  }

  async restore(id: string): Promise<void> {
    await this.alone(() => this.removed?.id === id && this.write({ ...this.read(), [id]: this.removed }));
  }

  /** Moves all conversations to another storage. If it has no room for all of them they stay here, and it returns false. */
  moveTo(storage: Storage): boolean {
    if (storage === this.storage) return true;
    const { storage: old } = this;
    const all = this.read();
    this.storage = storage;
    if (!this.isWritten({ ...this.read(), ...all })) {
      this.storage = old;
      return false;
    }
    old.removeItem(KEY);
    return true;
  }

  /** Throws an Error if there is no room: no other conversation is evicted for it. */
  async add(title: string, tree: Tree): Promise<string> {
    const id = this.newId();
    const one: Kept = { id, title: title || titleOf(tree), isPinned: false, updatedAtMs: Date.now(), tree };
    const isKept = await this.alone(() => this.isWritten({ ...this.read(), [id]: one }));
    if (!isKept) throw new Error("This browser has no room for this chat.");
    return id;
  }

  /**
   * Stores a conversation, with what other tabs have changed in it, and returns it so; null: there is no room for it. If the
   * storage is full the oldest ones are evicted, if that makes room.
   */
  keep(id: string, tree: Tree, settings: Settings | null = null): Tree | null {
    const isAlone = this.storage.getItem(KEY) === this.written;
    const whole = isAlone ? tree : (this.joinedWith(id, tree)?.tree ?? tree);
    const all = this.read();
    const old = all[id];
    const title = old?.title || titleOf(whole);
    const kept = { id, title, isPinned: old?.isPinned ?? false, updatedAtMs: Date.now(), tree: whole, ...(settings && { settings }) };
    this.joins.set(id, whole);
    return this.write({ ...all, [id]: kept }) ? whole : null;
  }

  private change(id: string, values: Partial<Kept>): void {
    const all = this.read();
    const old = all[id];
    if (old) this.write({ ...all, [id]: { ...old, ...values } });
  }

  private read(): Record<string, Kept> {
    return parsedKept(this.storage.getItem(KEY));
  }

  /** Evicts the oldest ones if there is no room, pinned ones last; none for one that does not fit alone. */
  private write(all: Record<string, Kept>): boolean {
    const newest = Object.values(all).reduce<Kept | null>((one, other) => (one && one.updatedAtMs > other.updatedAtMs ? one : other), null);
    const oldestFirst = Object.values(all).filter((one) => one !== newest);
    oldestFirst.sort((one, other) => Number(one.isPinned) - Number(other.isPinned) || one.updatedAtMs - other.updatedAtMs);
    const kept = { ...all };
    for (const oldest of [null, ...oldestFirst]) {
      if (oldest !== null) delete kept[oldest.id];
      if (this.isWritten(kept)) return true;
    }
    return false;
  }

  /** Returns whether it fits; if not, the previous content stays. */
  private isWritten(all: Record<string, Kept>): boolean {
    try {
      const text = JSON.stringify(all);
      this.storage.setItem(KEY, text);
      this.written = text;
      return true;
    } catch {
      return false;
    }
  }
}

function parsedKept(text: string | null): Record<string, Kept> {
  try {
    return (JSON.parse(text ?? "{}") as Record<string, Kept> | null) ?? {};
  } catch {
    return {};
  }
}

/** The beginning of the first question. */
export function titleOf(tree: Tree): string {
  const question = path(tree)[0];
  const first = (question?.text || question?.files?.[0]?.name || "").replace(/\s+/g, " ").trim();
  return first.length > 60 ? `${first.slice(0, 59).trimEnd()}…` : first || "New chat";
}

/** Finds lower-case words in a conversation: the entry, with the passage if the title does not have them. */
function foundIn(one: Kept, wanted: string): Entry[] {
  if (one.title.toLowerCase().includes(wanted)) return [one];
  for (const turn of Object.values(one.tree.turns)) {
    const texts = [turn.text, ...(turn.files ?? []).flatMap(({ name, text }) => [name, text])];
    for (const text of texts) {
      const place = text.toLowerCase().indexOf(wanted);
      if (place >= 0) return [{ ...one, passage: passage(text, place) }];
    }
  }
  return [];
}

const BEFORE_CHARS = 24;
const PASSAGE_CHARS = 120;

/** The text around a place, on one line. */
function passage(text: string, place: number): string {
  const start = Math.max(0, place - BEFORE_CHARS);
  const part = text.slice(start, start + PASSAGE_CHARS).replace(/\s+/g, " ").trim();
  return `${start ? "…" : ""}${part}${start + PASSAGE_CHARS < text.length ? "…" : ""}`;
}
