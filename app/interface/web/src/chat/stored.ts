// Conversations that the service keeps for a user: /v1/conversations. They have no branches; those are the tab's.
import type { Entry, Shelf } from "./shelf";
import { AnswerFailure, type Knobs, type Piece, ask, responded } from "./service";
import { newSeed } from "./state";
import { spoken } from "./thought";
import { type Said, type Tree, treeOf } from "./tree";

interface Conversation {
  id: string;
  title: string;
  updated_at: number;
  metadata: Record<string, string>;
}

export interface Item {
  id: string;
  type: string;
  role?: string;
  content?: string | { text?: string }[];
}

interface List<One> {
  data: One[];
  last_id: string;
  has_more: boolean;
}

const MOST_LISTED = 100;
/** As many new items as the service takes at once. */
const MOST_NEW = 20;

/** A turn that was stopped ends at the service a moment later, which refuses the next one until then. */
const CONFLICTS = 10;
const CONFLICT_MS = 300;

export class StoredShelf implements Shelf {
  constructor(private readonly newId: () => string) {}

  async list(words: string): Promise<Entry[]> {
    const query = words.trim() ? `&q=${encodeURIComponent(words.trim())}` : "";
    const { data } = await ask<List<Conversation>>("GET", `/v1/conversations?limit=${MOST_LISTED}${query}`);
    return data.map((one) => ({
      id: one.id, title: one.title || "New chat", updatedAtMs: one.updated_at * 1000, isPinned: one.metadata.pinned === "yes",
    }));
  }

  async open(id: string): Promise<Tree> {
    return treeOf((await items(id)).flatMap((item) => saidOf(item) ?? []), this.newId);
  }

  async rename(entry: Entry, title: string): Promise<void> {
    await this.change(entry.id, { title });
  }

  async pin(entry: Entry, isPinned: boolean): Promise<void> {
    await this.change(entry.id, { pinned: isPinned ? "yes" : "no" });
  }

  async remove(id: string): Promise<void> {
    await ask("DELETE", address(id));
  }

  private async change(id: string, values: Record<string, string>): Promise<void> {
    const { metadata } = await ask<Conversation>("GET", address(id));
    await ask("POST", address(id), { metadata: { ...metadata, ...values } });
  }
}

/** A new conversation's id. */
export async function created(): Promise<string> {
  return (await ask<Conversation>("POST", "/v1/conversations", {})).id;
}

/** Makes the stored conversation what was said here: takes out what differs and all behind it, and adds what is missing. */
export async function settled(id: string, said: Said[]): Promise<void> {
  const stored = await items(id);
  const alike = agreeing(stored, said);
  for (const item of stored.slice(alike)) await ask("DELETE", `${address(id)}/items/${encodeURIComponent(item.id)}`);
  const missing = said.slice(alike).map((one) => ({ type: "message", role: one.role, content: one.content }));
  for (let at = 0; at < missing.length; at += MOST_NEW) {
    await ask("POST", `${address(id)}/items`, { items: missing.slice(at, at + MOST_NEW) });
  }
}

/** The next turn of a stored conversation, after what was said before is stored as it is shown here. */
export async function* turnOf(id: string, said: Said[], model: string, knobs: Knobs, signal: AbortSignal): AsyncGenerator<Piece> {
  const question = said.at(-1)?.content ?? "";
  for (let attempt = 1; ; attempt += 1) {
    try {
      await settled(id, said.slice(0, -1));
      yield* responded(model, id, question, knobs, knobs.seed ?? newSeed(), signal);
      return;
    } catch (error) {
      const isOpen = error instanceof AnswerFailure && error.code === "conversation_conflict";
      if (!isOpen || attempt === CONFLICTS) throw error;
      await new Promise((resolve) => setTimeout(resolve, CONFLICT_MS));
    }
  }
}

/** How many items at the beginning are what was said. */
export function agreeing(stored: Item[], said: Said[]): number {
  let alike = 0;
  for (const item of stored) {
    const [one, other] = [saidOf(item), said[alike]];
    if (!one || !other || one.role !== other.role || bare(one) !== bare(other)) break;
    alike += 1;
  }
  return alike;
}

const bare = (one: Said) => (one.role === "assistant" ? spoken(one.content) : one.content.trim());
const address = (id: string) => `/v1/conversations/${encodeURIComponent(id)}`;

async function items(id: string): Promise<Item[]> {
  const found: Item[] = [];
  let after = "";
  for (;;) {
    const part = await ask<List<Item>>("GET", `${address(id)}/items?order=asc&limit=100${after}`);
    found.push(...part.data);
    if (!part.has_more) return found;
    after = `&after=${encodeURIComponent(part.last_id)}`;
  }
}

/** A message as it was said; null: the item is something else. */
function saidOf(item: Item): Said | null {
  if (item.type !== "message" || (item.role !== "user" && item.role !== "assistant")) return null;
  const content = typeof item.content === "string" ? item.content : (item.content ?? []).map((part) => part.text ?? "").join("");
  return { role: item.role, content };
}
