// A conversation as a tree: an edited question, or another version of an answer, is another branch.
// Knows no page and no service. Trees are immutable, so that a view can compare them.

import { apart } from "./thought";

export type Status = "waiting" | "reading" | "writing" | "done" | "stopped" | "cut" | "part" | "failed";

/** The longest answer, or the context's end. */
export type Cut = "length" | "context";

const OPEN: Status[] = ["waiting", "reading", "writing"];

export interface Failure {
  message: string;
  /** The request's id in the service's log; empty: unknown. */
  requestId: string;
  /** When the service wants to be asked again, in Unix milliseconds; absent: it has not said. */
  retryAtMs?: number;
}

/** What the model saw of a chat for an answer. */
export interface Context {
  /** How many of the oldest turns, each a question with its answer, the model did not see. */
  leftOut: number;
  /** When a chat takes more tokens than this its oldest turns are left out. */
  limitTokens: number;
}

export interface Usage {
  promptTokens: number;
  rememberedTokens: number;
  answerTokens: number;
}

/** The progress of an answer before its first token. */
export interface Progress {
  /** How many requests start before it; null: it is not queued. */
  ahead: number | null;
  /** Processed tokens of the `total` prompt tokens. */
  done: number;
  total: number;
}

/** A file of a question, as the model reads it. */
export interface Attached {
  name: string;
  /** Pages, slides or sheets; null: it has none. */
  pages: number | null;
  text: string;
  /** Sentences about what of it could not be read; absent: unknown. */
  notes?: string[];
  /** Absent or null: unknown. */
  tokens?: number | null;
}

/** A passage that was found for an answer, which cites it by its number: the first is [1]. */
export interface Source {
  name: string;
  page: number | null;
  text: string;
}

export interface Turn {
  id: string;
  /** Empty: the conversation begins with it. */
  parent: string;
  role: "user" | "assistant";
  text: string;
  /** Of a question; absent: none. */
  files?: Attached[];
  /** Of an answer: what was found for it in collections; absent: nothing was searched. */
  sources?: Source[];
  /** The thought before an answer; absent or empty: none. */
  thought?: string;
  status: Status;
  /** Unix milliseconds; 0: not yet. */
  askedAtMs: number;
  firstAtMs: number;
  thoughtUntilMs: number;
  endedAtMs: number;
  /** The model that wrote an answer; empty: unknown. */
  model: string;
  /** What ended an answer whose status is "cut"; absent: unknown. */
  cutBy?: Cut;
  /** Whether the thought was ended by the limit of thoughts; the answer came all the same. */
  isThoughtCut?: boolean;
  context?: Context;
  /** The id in the service's store; absent or empty: it is not stored there, or it is a question of this tab. */
  itemId?: string;
  failure?: Failure;
  usage?: Usage;
  progress?: Progress;
}

export interface Tree {
  turns: Record<string, Turn>;
  /** The children of each turn, and of the beginning "", oldest first. */
  children: Record<string, string[]>;
  /** The shown child of each turn. */
  chosen: Record<string, string>;
}

export interface Said {
  role: "system" | "user" | "assistant";
  content: string;
  /** Of a question; absent: none. */
  files?: Attached[];
}

export const EMPTY: Tree = { turns: {}, children: {}, chosen: {} };

/** Creates a turn of these values; the others are initial. */
export function turn(values: Pick<Turn, "id" | "parent" | "role"> & Partial<Turn>): Turn {
  const status = values.role === "user" ? "done" : "waiting";
  return { text: "", status, askedAtMs: 0, firstAtMs: 0, thoughtUntilMs: 0, endedAtMs: 0, model: "", ...values };
}

/** Adds a turn below its parent and shows it. */
export function added(tree: Tree, one: Turn): Tree {
  return {
    turns: { ...tree.turns, [one.id]: one },
    children: { ...tree.children, [one.parent]: [...(tree.children[one.parent] ?? []), one.id] },
    chosen: { ...tree.chosen, [one.parent]: one.id },
  };
}

/** Replaces some values of a turn; a removed turn stays removed. */
export function changed(tree: Tree, id: string, values: Partial<Turn>): Tree {
  const old = tree.turns[id];
  return old === undefined ? tree : { ...tree, turns: { ...tree.turns, [id]: { ...old, ...values } } };
}

/** Removes a turn without turns below it, and shows `shown` in its place if that is still there. */
export function removed(tree: Tree, id: string, shown?: string): Tree {
  const { [id]: one, ...turns } = tree.turns;
  if (one === undefined || tree.children[id]?.length) return tree;
  const siblings = (tree.children[one.parent] ?? []).filter((each) => each !== id);
  const { [one.parent]: was, ...chosen } = tree.chosen;
  const next = shown !== undefined && siblings.includes(shown) ? shown : was !== id ? was : siblings.at(-1);
  return { turns, children: { ...tree.children, [one.parent]: siblings }, chosen: next === undefined ? chosen : { ...chosen, [one.parent]: next } };
}

/** Negative: the first is an older state of the same turn; 0: neither is older. An answer is asked for, grows, and ends. */
function age(one: Turn, other: Turn): number {
  const ended = ({ status }: Turn) => Number(!OPEN.includes(status));
  const length = ({ text, thought = "" }: Turn) => text.length + thought.length;
  return one.askedAtMs - other.askedAtMs || ended(one) - ended(other) || one.endedAtMs - other.endedAtMs || length(one) - length(other);
}

/** Whether a tree has turns that another one lacks, or newer states of them. */
export function isAhead(tree: Tree, other: Tree): boolean {
  return Object.values(tree.turns).some((one) => other.turns[one.id] === undefined || age(one, other.turns[one.id]!) > 0);
}

/**
 * Joins two versions of a tree that were both made of `base`, by two tabs. A turn is in its newest state, since a tab may write
 * an older state of what the other has changed. Else what only one of them changed is as that one has it; what both did is as
 * it is here.
 */
export function joined(here: Tree, there: Tree, base: Tree): Tree {
  const newest = (id: string): Turn => {
    const [mine, theirs] = [here.turns[id], there.turns[id]];
    const difference = mine && theirs ? age(mine, theirs) : 0;
    if (difference) return difference < 0 ? theirs! : mine!;
    return one(id, (tree) => tree.turns)!;
  };
  const one = <Value>(key: string, of: (tree: Tree) => Record<string, Value>): Value | undefined => {
    const [mine, theirs] = [of(here)[key], of(there)[key]];
    return mine === of(base)[key] ? (theirs ?? mine) : (mine ?? theirs);
  };
  const all = <Value>(of: (tree: Tree) => Record<string, Value>): Record<string, Value> => {
    const keys = new Set([...Object.keys(of(there)), ...Object.keys(of(here))]);
    return Object.fromEntries([...keys].flatMap((key) => [[key, one(key, of)!] as const]));
  };
  const children: Tree["children"] = Object.fromEntries(
    [...new Set([...Object.keys(there.children), ...Object.keys(here.children)])].map((key) => {
      return [key, [...new Set([...(there.children[key] ?? []), ...(here.children[key] ?? [])])]];
    }),
  );
  const turns = Object.fromEntries(Object.keys({ ...there.turns, ...here.turns }).map((id) => [id, newest(id)]));
  return { turns, children, chosen: all((tree) => tree.chosen) };
}

/** Adds to a tree from the service what this tab knows of the same answers and the service does not store: how they ended, times, usage. */
export function remembered(tree: Tree, known: Tree): Tree {
  const here = new Map(Object.values(known.turns).flatMap((one) => (one.itemId ? [[one.itemId, one] as const] : [])));
  const turns = Object.values(tree.turns).map((one) => {
    const same = one.role === "assistant" ? here.get(one.itemId ?? "") : undefined;
    if (same === undefined || OPEN.includes(same.status)) return [one.id, one] as const;
    if (same.text === one.text) return [one.id, { ...same, id: one.id, parent: one.parent }] as const;
    // A tab that has not waited for the end of the answer that it stopped has less of the text.
    const isStopped = same.status === "stopped" && one.status === "part";
    return [one.id, isStopped ? { ...one, status: same.status } : one] as const;
  });
  return { ...tree, turns: Object.fromEntries(turns) };
}

/** Shows the sibling `step` positions further. */
export function switched(tree: Tree, id: string, step: number): Tree {
  const one = tree.turns[id];
  if (one === undefined) return tree;
  const siblings = tree.children[one.parent] ?? [];
  const next = siblings[siblings.indexOf(id) + step];
  return next === undefined ? tree : { ...tree, chosen: { ...tree.chosen, [one.parent]: next } };
}

/** The shown branch, from the first turn to the last. */
export function path(tree: Tree): Turn[] {
  const shown: Turn[] = [];
  for (let id = tree.chosen[""]; id !== undefined; id = tree.chosen[id]) {
    const one = tree.turns[id];
    if (one === undefined) break;
    shown.push(one);
  }
  return shown;
}

/** The turns from the beginning down to this one. */
export function pathTo(tree: Tree, id: string): Turn[] {
  const found: Turn[] = [];
  for (let one = tree.turns[id]; one !== undefined; one = tree.turns[one.parent]) found.unshift(one);
  return found;
}

/**
 * Returns the messages for a model. A question without an answer is dropped unless it is the last turn, since many
 * models' templates require alternating turns; thoughts are dropped too.
 */
export function history(turns: Turn[]): Said[] {
  const said: Said[] = [];
  turns.forEach((one, index) => {
    const content = one.role === "assistant" ? one.text.trim() : one.text;
    const next = turns[index + 1];
    const isAnswered = next === undefined || (next.role === "assistant" && next.text.trim() !== "");
    if ((content !== "" || one.files) && (one.role === "assistant" || isAnswered)) said.push(saidOf(one, content));
  });
  return said;
}

/** A turn as a message. */
export const saidOf = ({ role, text, files }: Turn, content = text): Said => ({ role, content, ...(files && { files }) });

/** How many questions from the beginning of a branch the model did not see for its last answer, and has not seen since. */
export function leftOut(turns: Turn[]): number {
  return turns.filter((one) => one.context).at(-1)?.context?.leftOut ?? 0;
}

/** The first turn of a branch that the model still sees; empty: it sees all. */
export function firstSeen(turns: Turn[]): string {
  let left = leftOut(turns);
  if (!left) return "";
  const isSent = (place: number) => turns[place + 1]?.role === "assistant" && turns[place + 1]!.text.trim() !== "";
  const isQuestion = (one: Turn, place: number) => one.role === "user" && (isSent(place) || place === turns.length - 1);
  return turns.find((one, place) => isQuestion(one, place) && left-- === 0)?.id ?? "";
}

/** Reads a stored tree; null: it is invalid. An answer that was being generated then has broken off. */
export function restored(kept: unknown, isOpenKept = false): Tree | null {
  const tree = kept as Tree | null;
  if (typeof tree !== "object" || tree === null || !tree.turns || !tree.children || !tree.chosen) return null;
  const turns: Record<string, Turn> = {};
  for (const one of Object.values(tree.turns)) {
    if (typeof one.text !== "string" || (one.role !== "user" && one.role !== "assistant")) return null;
    const isOpen = OPEN.includes(one.status) && !isOpenKept;
    const parted = one.role === "assistant" && one.thought === undefined ? { ...one, ...apart(one.text) } : one;
    turns[one.id] = isOpen ? { ...parted, status: "stopped" } : parted;
  }
  return { turns, children: tree.children, chosen: tree.chosen };
}

/** The tree of a conversation without branches. */
export function treeOf(said: Said[], newId: () => string): Tree {
  let tree = EMPTY;
  let parent = "";
  for (const { role, content, files } of said) {
    if (role === "system") continue;
    const texts = role === "assistant" ? apart(content) : { text: content, ...(files && { files }) };
    const one = turn({ id: newId(), parent, role, ...texts, status: "done" });
    tree = added(tree, one);
    parent = one.id;
  }
  return tree;
}
