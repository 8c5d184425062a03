// A conversation as a tree: a question that was edited, or an answer that was asked for again, is another branch.
// Knows no page and no service. Trees are never changed in place, so that a view can compare them.

import { apart } from "./thought";

export type Status = "waiting" | "reading" | "writing" | "done" | "stopped" | "cut" | "part" | "failed";

export interface Failure {
  message: string;
  /** What the service's log calls the request; empty: it did not say. */
  requestId: string;
}

export interface Usage {
  promptTokens: number;
  rememberedTokens: number;
  answerTokens: number;
}

/** How far an answer is before its first word. */
export interface Progress {
  /** How many requests begin before it; null: it does not wait. */
  ahead: number | null;
  /** Of `total` tokens of the prompt. */
  done: number;
  total: number;
}

export interface Turn {
  id: string;
  /** Empty: the conversation begins with it. */
  parent: string;
  role: "user" | "assistant";
  text: string;
  /** What was thought before an answer; absent or empty: nothing. */
  thought?: string;
  status: Status;
  /** Unix milliseconds; 0: not yet. */
  askedAtMs: number;
  firstAtMs: number;
  thoughtUntilMs: number;
  endedAtMs: number;
  model: string;
  /** What the service that keeps the conversation calls it; absent or empty: it does not have it, or it is a question of this tab. */
  itemId?: string;
  failure?: Failure;
  usage?: Usage;
  progress?: Progress;
}

export interface Tree {
  turns: Record<string, Turn>;
  /** Of each turn, and of the beginning "", the children in the order of their making. */
  children: Record<string, string[]>;
  /** Which child of each is shown. */
  chosen: Record<string, string>;
}

export interface Said {
  role: "system" | "user" | "assistant";
  content: string;
}

export const EMPTY: Tree = { turns: {}, children: {}, chosen: {} };

/** A turn of these values; the others as they are before anything has happened. */
export function turn(values: Pick<Turn, "id" | "parent" | "role"> & Partial<Turn>): Turn {
  const status = values.role === "user" ? "done" : "waiting";
  return { text: "", status, askedAtMs: 0, firstAtMs: 0, thoughtUntilMs: 0, endedAtMs: 0, model: "", ...values };
}

/** With another turn below its parent, which is shown from now on. */
export function added(tree: Tree, one: Turn): Tree {
  return {
    turns: { ...tree.turns, [one.id]: one },
    children: { ...tree.children, [one.parent]: [...(tree.children[one.parent] ?? []), one.id] },
    chosen: { ...tree.chosen, [one.parent]: one.id },
  };
}

/** With some values of a turn replaced; a turn that is gone stays away. */
export function changed(tree: Tree, id: string, values: Partial<Turn>): Tree {
  const old = tree.turns[id];
  return old === undefined ? tree : { ...tree, turns: { ...tree.turns, [id]: { ...old, ...values } } };
}

/** With the sibling shown that lies `step` further. */
export function switched(tree: Tree, id: string, step: number): Tree {
  const one = tree.turns[id];
  if (one === undefined) return tree;
  const siblings = tree.children[one.parent] ?? [];
  const next = siblings[siblings.indexOf(id) + step];
  return next === undefined ? tree : { ...tree, chosen: { ...tree.chosen, [one.parent]: next } };
}

/** What is shown, from the first turn to the last. */
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
 * What is sent to a model of these turns. A question without an answer is left out unless it is the last turn, since
 * many models' templates want question and answer in turn; what was thought before an answer is left out too.
 */
export function history(turns: Turn[]): Said[] {
  const said: Said[] = [];
  turns.forEach((one, index) => {
    const content = one.role === "assistant" ? one.text.trim() : one.text;
    const next = turns[index + 1];
    const isAnswered = next === undefined || (next.role === "assistant" && next.text.trim() !== "");
    if (content !== "" && (one.role === "assistant" || isAnswered)) said.push({ role: one.role, content });
  });
  return said;
}

/** A tree that was kept somewhere; null: it is none. An answer that was being written then was broken off. */
export function restored(kept: unknown): Tree | null {
  const tree = kept as Tree | null;
  if (typeof tree !== "object" || tree === null || !tree.turns || !tree.children || !tree.chosen) return null;
  const turns: Record<string, Turn> = {};
  for (const one of Object.values(tree.turns)) {
    if (typeof one.text !== "string" || (one.role !== "user" && one.role !== "assistant")) return null;
    const isOpen = ["waiting", "reading", "writing"].includes(one.status);
    const parted = one.role === "assistant" && one.thought === undefined ? { ...one, ...apart(one.text) } : one;
    turns[one.id] = isOpen ? { ...parted, status: "stopped" } : parted;
  }
  return { turns, children: tree.children, chosen: tree.chosen };
}

/** The tree of a conversation without branches. */
export function treeOf(said: Said[], newId: () => string): Tree {
  let tree = EMPTY;
  let parent = "";
  for (const { role, content } of said) {
    if (role === "system") continue;
    const texts = role === "assistant" ? apart(content) : { text: content };
    const one = turn({ id: newId(), parent, role, ...texts, status: "done" });
    tree = added(tree, one);
    parent = one.id;
  }
  return tree;
}
