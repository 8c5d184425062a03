// Conversations that the service stores for a user: /v1/conversations. Each item names its parent, so that the versions
// of a question and of an answer are stored too.
import { type ListPart, wholeList } from "../common/api";
import { type Settings, asMetadata, ofMetadata, withoutSettings } from "./chat_settings";
import type { Entry, Listed, Shelf } from "./shelf";
import {
  AnswerFailure, type Asked, type Piece, type WireContext, type WireResponseUsage, ask, cancelled, contextOf, placeOf, responded, resumed,
  send, usageOf,
} from "./service";
import { type Part, type Passage, filesOf, isSame, itemContent, sourcesOf, textOf } from "./files";
import { apart } from "./thought";
import { EMPTY, type Said, type Source, type Tree, type Turn, added, history, saidOf, turn } from "./tree";

interface Conversation {
  id: string;
  title: string;
  updated_at: number;
  metadata: Record<string, string>;
  /** The number of its items. */
  items: number;
  /** The id of the answer that is being generated in it; null: none. */
  response_id: string | null;
  /** In a search: the text around what was found; null: the title has it. */
  passage?: string | null;
}

export interface Item {
  id: string;
  type: string;
  role?: string;
  content?: string | Part[] | null;
  status?: string;
  /** The item's parent, or "root"; absent: the item before it. */
  parent?: string;
  /** Of a search in collections: what was found. */
  results?: Passage[] | null;
  /** Of a thought: what has ended it; absent: the model. */
  cut?: string;
  /** Of an answer's last item: how it came about. */
  response?: Told;
}

interface Told {
  model?: string;
  status?: string;
  incomplete_details?: { reason?: string } | null;
  usage?: WireResponseUsage | null;
  context?: WireContext | null;
}

/** A conversation as the service stores it. */
export interface Opened {
  tree: Tree;
  /** The id of the answer that is being generated in it; empty: none. */
  responseId: string;
  settings: Settings;
}

const MOST_LISTED = 100;
/** The service's limit of new items per request. */
const MOST_NEW = 20;

/** A stopped turn ends at the service a moment later, which refuses the next one until then. */
const CONFLICTS = 10;
const CONFLICT_MS = 300;

const ROOT = "root";

export class StoredShelf implements Shelf {
  /** Resolves when all changes so far are made: each stores all that it does not change as it was before. */
  private changing: Promise<unknown> = Promise.resolve();

  constructor(private readonly newId: () => string) {}

  async list(words: string, after: string): Promise<Listed> {
    const query = `${words.trim() ? `&q=${encodeURIComponent(words.trim())}` : ""}${after ? `&after=${encodeURIComponent(after)}` : ""}`;
    const { data, last_id, has_more } = await ask<ListPart<Conversation>>("GET", `/v1/conversations?limit=${MOST_LISTED}${query}`);
    // One without anything is of a question that the service has not taken.
    const shown = data.filter((one) => one.items !== 0 || one.response_id || one.metadata.title);
    const entries = shown.map((one): Entry => ({
      id: one.id, title: one.title || "New chat", updatedAtMs: one.updated_at * 1000,
      isPinned: one.metadata.pinned === "yes", isAnswering: Boolean(one.response_id), ...(one.passage && { passage: one.passage }),
    }));
    return { entries, after: has_more ? last_id : "" };
  }

  async open(id: string): Promise<Tree> {
    return (await this.openWhole(id)).tree;
  }

  async openWhole(id: string): Promise<Opened> {
    const { response_id, metadata } = await ask<Conversation>("GET", address(id));
    const tree = treeOfItems(await items(address(id)), this.newId);
    return { tree, responseId: response_id ?? "", settings: ofMetadata(metadata) };
  }

  async rename(entry: Entry, title: string): Promise<void> {
    await this.change(entry.id, (metadata) => ({ ...metadata, title }));
  }

  async pin(entry: Entry, isPinned: boolean): Promise<void> {
    await this.change(entry.id, (metadata) => ({ ...metadata, pinned: isPinned ? "yes" : "no" }));
  }

  /** Keeps the settings with the conversation. Returns false if they are too long for that. */
  async keepSettings(id: string, settings: Settings): Promise<boolean> {
    const kept = asMetadata(settings);
    if (kept !== null) await this.change(id, (metadata) => ({ ...withoutSettings(metadata), ...kept }));
    return kept !== null;
  }

  async remove(id: string): Promise<void> {
    await send("DELETE", `${address(id)}?undo=true`, undefined, undefined, true);
  }

  async discard(id: string): Promise<void> {
    await discarded(id);
  }

  async restore(id: string): Promise<void> {
    await ask("POST", `${address(id)}/restore`, {});
  }

  async add(title: string, tree: Tree): Promise<string> {
    const id = await created(title ? { title } : {});
    try {
      await this.fill(id, tree);
    } catch (error) {
      await discarded(id).catch(() => undefined);
      throw error;
    }
    return id;
  }

  private async fill(id: string, tree: Tree): Promise<void> {
    const places: Record<string, string> = {};
    // From the first turn on, so that each parent is stored before its children.
    const rest = [...(tree.children[""] ?? [])];
    for (let next = rest.shift(); next !== undefined; next = rest.shift()) {
      const line: Turn[] = [];
      for (let one = tree.turns[next]; one !== undefined; ) {
        line.push(one);
        const [first, ...others]: string[] = tree.children[one.id] ?? [];
        rest.push(...others);
        one = first === undefined ? undefined : tree.turns[first];
      }
      const parent = line[0]?.parent ?? "";
      const ids = await put(id, line.map((one) => saidOf(one)), places[parent] ?? ROOT);
      line.forEach((one, place) => (places[one.id] = ids[place] ?? ROOT));
    }
  }

  private async change(id: string, values: (metadata: Record<string, string>) => Record<string, string>): Promise<void> {
    const made = this.changing.then(async () => {
      const { metadata } = await ask<Conversation>("GET", address(id));
      await ask("POST", address(id), { metadata: values(metadata) });
    });
    this.changing = made.catch(() => undefined);
    await made;
  }
}

/** Returns a new conversation's id. */
export async function created(metadata: Record<string, string> = {}): Promise<string> {
  return (await ask<Conversation>("POST", "/v1/conversations", { metadata })).id;
}

/** Deletes a conversation that nobody has seen, for good. */
export async function discarded(id: string): Promise<void> {
  await send("DELETE", address(id), undefined, undefined, true);
}

/**
 * Stores the turns that the service does not have, after the last one that it has. Returns the id of the next turn's
 * parent.
 */
export async function placed(id: string, turns: Turn[]): Promise<string> {
  const known = turns.reduce((last, one, place) => (one.itemId ? place : last), -1);
  const parent = turns[known]?.itemId ?? ROOT;
  const missing = history([...turns.slice(known + 1), END]).slice(0, -1);
  return missing.length ? ((await put(id, missing, parent)).at(-1) ?? parent) : parent;
}

/** Appended so that a question before it counts as one without an answer. */
const END = turn({ id: "", parent: "", role: "user", text: "." });

/** Answers the last of these turns, which is a question. It continues if nobody listens any more. */
export async function* turnOf(id: string, turns: Turn[], asked: Asked, signal: AbortSignal): AsyncGenerator<Piece> {
  const question = saidOf(turns.at(-1)!);
  for (let attempt = 1; ; attempt += 1) {
    try {
      const parent = await placed(id, turns.slice(0, -1));
      yield* responded(asked, { id, parent }, question, signal);
      return;
    } catch (error) {
      const isOpen = error instanceof AnswerFailure && error.code === "conversation_conflict";
      if (!isOpen || attempt === CONFLICTS || signal.aborted) throw error;
      await new Promise((resolve) => setTimeout(resolve, CONFLICT_MS));
    }
  }
}

/**
 * As `turnOf`, after a connection that broke before it was known whether the service has taken the question: one that it has
 * taken is not asked again. `versions`: how many answers of the question it had before.
 */
export async function* turnAgain(
  id: string, turns: Turn[], asked: Asked, versions: number, signal: AbortSignal,
): AsyncGenerator<Piece> {
  const question = saidOf(turns.at(-1)!);
  const parent = turns.slice(0, -1).filter((one) => one.itemId).at(-1)?.itemId ?? ROOT;
  const { response_id } = await ask<Conversation>("GET", address(id));
  if (response_id && (await placeOf(response_id)) === parent && isSame(await questionOf(response_id), question)) {
    yield* resumed(response_id, signal);
    return;
  }
  const answers = answersOf(await items(address(id)), parent, question);
  const answer = answers.length > versions ? answers.at(-1) : undefined;
  if (answer === undefined) {
    yield* turnOf(id, turns, asked, signal);
    return;
  }
  yield { kind: "admitted" };
  yield { kind: "item", id: answer.id };
  yield { kind: "whole", text: textOf(answer.content), thought: "" };
  yield { kind: "end", cut: null, isStopped: answer.status === "incomplete" };
}

/** The answers to a question that follows an item, oldest first. */
function answersOf(stored: Item[], parent: string, question: Said): Item[] {
  const found: Item[] = [];
  let isAsked = false;
  stored.forEach((item, place) => {
    const said = messageOf(item);
    const isBelow = (item.parent ?? stored[place - 1]?.id ?? ROOT) === parent;
    if (said?.role === "user") isAsked = isBelow && isSame(said, question);
    else if (said?.role === "assistant" && isAsked) {
      found.push(item);
      isAsked = false;
    }
  });
  return found;
}

/** Ends the answer that is being generated in a conversation, or about to be. */
export async function ended(id: string): Promise<void> {
  for (let attempt = 1; attempt <= CONFLICTS; attempt += 1) {
    const { response_id } = await ask<Conversation>("GET", address(id));
    if (response_id) {
      await cancelled(response_id);
      return;
    }
    await new Promise((resolve) => setTimeout(resolve, CONFLICT_MS));
  }
}

/** The question that a response answers. */
export async function questionOf(responseId: string): Promise<Said> {
  const asked = await items(`/v1/responses/${encodeURIComponent(responseId)}`, "input_items");
  return asked.flatMap((item) => messageOf(item) ?? []).at(-1) ?? { role: "user", content: "" };
}

/**
 * Builds the tree of stored items. The same question with the same parent is one question with several answers. A thought
 * becomes part of the answer that follows it, or is an answer without a text; other items that are not messages are dropped.
 */
export function treeOfItems(stored: Item[], newId: () => string): Tree {
  let tree = EMPTY;
  const places = new Map<string, string>();
  const thoughts = new Map<string, Item>();
  const found = new Map<string, Source[]>();
  let before = "";
  let last = "";
  for (const item of stored) {
    const thinking = thoughts.get(item.parent ?? last);
    const sources = item.results ? sourcesOf(item.results) : found.get(item.parent ?? last);
    if (sources && item.type !== "message") found.set(item.id, sources);
    if (item.type === "reasoning") thoughts.set(item.id, item);
    last = item.id;
    const parent = item.parent === undefined ? before : item.parent === ROOT ? "" : (places.get(item.parent) ?? before);
    const said = messageOf(item);
    const same = (tree.children[parent] ?? []).find((id) => said?.role === "user" && isSame(saidOf(tree.turns[id]!), said));
    if (item.type === "reasoning" && item.response) { // all that came
      before = newId();
      tree = added(tree, turn({ id: before, parent, role: "assistant", thought: textOf(item.content), ...toldOf(item), itemId: item.id }));
    } else if (said === null) before = parent;
    else if (same !== undefined) {
      tree = { ...tree, chosen: { ...tree.chosen, [parent]: same } };
      before = same;
    } else {
      before = newId();
      const told = toldOf(item);
      const thought: Partial<Turn> = thinking ? { thought: textOf(thinking.content), ...(thinking.cut === "budget" && { isThoughtCut: true }) } : {};
      const { content, files } = said;
      const texts = said.role === "user" ? { text: content, ...(files && { files }) } : thought.thought ? { text: content, ...thought } : apart(content);
      tree = added(tree, turn({ id: before, parent, role: said.role, ...texts, ...told, ...(sources && said.role === "assistant" && { sources }), itemId: item.id }));
    }
    places.set(item.id, before);
  }
  // The newest item is shown, and the branch that leads to it.
  const chosen = { ...tree.chosen };
  for (let one = tree.turns[before]; one !== undefined; one = tree.turns[one.parent]) chosen[one.parent] = one.id;
  return { ...tree, chosen };
}

/** How an answer ended, and what the service has counted. */
function toldOf({ status, response }: Item): Partial<Turn> {
  const reason = response?.incomplete_details?.reason;
  const isStopped = response?.status === "cancelled";
  const end: Partial<Turn> = reason
    ? { status: "cut", cutBy: response?.context?.full ? "context" : "length" }
    : { status: isStopped ? "stopped" : status === "incomplete" ? "part" : "done" };
  const { model, usage, context } = response ?? {};
  return { ...end, ...(model && { model }), ...(usage && { usage: usageOf(usage) }), ...(context && { context: contextOf(context) }) };
}

const address = (id: string) => `/v1/conversations/${encodeURIComponent(id)}`;

async function put(id: string, said: Said[], parent: string): Promise<string[]> {
  const ids: string[] = [];
  for (let at = 0; at < said.length; at += MOST_NEW) {
    const some = said.slice(at, at + MOST_NEW).map((one) => ({ type: "message", role: one.role, content: itemContent(one) }));
    const { data } = await ask<ListPart<Item>>("POST", `${address(id)}/items`, { items: some, parent: ids.at(-1) ?? parent });
    ids.push(...data.map((one) => one.id));
  }
  return ids;
}

const items = (owner: string, kind = "items") =>
  wholeList((after) => ask<ListPart<Item>>("GET", `${owner}/${kind}?order=asc&limit=100${after}`));

/** Converts an item to a message; null: the item is something else. */
function messageOf({ type, role, content }: Item): (Said & { role: "user" | "assistant" }) | null {
  if (type !== "message" || (role !== "user" && role !== "assistant")) return null;
  const files = filesOf(content);
  return { role, content: textOf(content), ...(files.length && { files }) };
}
