// Stores conversations in the browser, for one tab or permanently. Knows no page.
import { path, restored, type Tree } from "./tree";

export interface Entry {
  id: string;
  title: string;
  /** Unix milliseconds. */
  updatedAtMs: number;
  isPinned: boolean;
  /** Whether an answer is being generated in it. */
  isAnswering?: boolean;
}

/** A store of conversations. */
export interface Shelf {
  /** Last updated first. `words` are searched in titles and texts. */
  list(words: string): Promise<Entry[]>;
  open(id: string): Promise<Tree>;
  rename(entry: Entry, title: string): Promise<void>;
  pin(entry: Entry, isPinned: boolean): Promise<void>;
  remove(id: string): Promise<void>;
  /** Restores a conversation that was removed some seconds ago. */
  restore(id: string): Promise<void>;
  /** Stores an imported conversation under a new id. */
  add(title: string, tree: Tree): Promise<string>;
}

interface Kept extends Entry {
  tree: Tree;
}

const KEY = "redoubt.conversations";

/** Conversations of one tab, deleted when it is closed; or of a browser, if the user wants that. */
export class TabShelf implements Shelf {
  private removed: Kept | undefined;

  constructor(
    private storage: Storage,
    private readonly newId: () => string,
  ) {}

  async list(words: string): Promise<Entry[]> {
    const wanted = words.trim().toLowerCase();
    const all = Object.values(this.read()).sort((one, other) => other.updatedAtMs - one.updatedAtMs);
    return wanted ? all.filter((one) => textOf(one).includes(wanted)) : all;
  }

  async open(id: string): Promise<Tree> {
    const tree = restored(this.read()[id]?.tree);
    if (tree === null) throw new Error("There is no such conversation.");
    return tree;
  }

  async rename(entry: Entry, title: string): Promise<void> {
    this.change(entry.id, { title });
  }

  async pin(entry: Entry, isPinned: boolean): Promise<void> {
    this.change(entry.id, { isPinned });
  }

  async remove(id: string): Promise<void> {
    const { [id]: removed, ...others } = this.read();
    this.removed = removed;
    this.write(others);
  }

  async restore(id: string): Promise<void> {
    if (this.removed?.id === id) this.write({ ...this.read(), [id]: this.removed });
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
    if (!this.isWritten({ ...this.read(), [id]: one })) throw new Error("This browser has no room for this chat.");
    return id;
  }

  /** Stores a conversation. If the storage is full the oldest ones are evicted, if that makes room. */
  keep(id: string, tree: Tree): void {
    const all = this.read();
    const old = all[id];
    const title = old?.title || titleOf(tree);
    this.write({ ...all, [id]: { id, title, isPinned: old?.isPinned ?? false, updatedAtMs: Date.now(), tree } });
  }

  private change(id: string, values: Partial<Kept>): void {
    const all = this.read();
    const old = all[id];
    if (old) this.write({ ...all, [id]: { ...old, ...values } });
  }

  private read(): Record<string, Kept> {
    try {
      return (JSON.parse(this.storage.getItem(KEY) ?? "{}") as Record<string, Kept> | null) ?? {};
    } catch {
      return {};
    }
  }

  /** Evicts the oldest ones if there is no room, pinned ones last; none for one that does not fit alone. */
  private write(all: Record<string, Kept>): void {
    const newest = Object.values(all).reduce<Kept | null>((one, other) => (one && one.updatedAtMs > other.updatedAtMs ? one : other), null);
    const oldestFirst = Object.values(all).filter((one) => one !== newest);
    oldestFirst.sort((one, other) => Number(one.isPinned) - Number(other.isPinned) || one.updatedAtMs - other.updatedAtMs);
    const kept = { ...all };
    for (const oldest of [null, ...oldestFirst]) {
      if (oldest !== null) delete kept[oldest.id];
      if (this.isWritten(kept)) return;
    }
  }

  /** Returns whether it fits; if not, the previous content stays. */
  private isWritten(all: Record<string, Kept>): boolean {
    try {
      this.storage.setItem(KEY, JSON.stringify(all));
      return true;
    } catch {
      return false;
    }
  }
}

/** The beginning of the first question. */
export function titleOf(tree: Tree): string {
  const first = path(tree)[0]?.text.replace(/\s+/g, " ").trim() ?? "";
  return first.length > 60 ? `${first.slice(0, 59).trimEnd()}…` : first || "New chat";
}

function textOf(one: Kept): string {
  const texts = Object.values(one.tree.turns).map((each) => each.text);
  return [one.title, ...texts].join("\n").toLowerCase();
}
