// The chat's state, and small helpers of it. Knows no page.
import type * as service from "./service";
import type { Entry } from "./shelf";
import type { Tree } from "./tree";

export interface User {
  user_id: string;
  name: string;
  role: "user" | "admin";
}

export interface State {
  /** Whose session the browser has; null: a guest's, or there are no accounts. */
  user: User | null;
  models: service.Model[];
  /** Empty: none is known yet. */
  model: string;
  isReachable: boolean;
  needsKey: boolean;
  knobs: service.Knobs;
  key: string;
  /** Empty: a new chat. */
  id: string;
  tree: Tree;
  draft: string;
  /** The answer that is being written; empty: none. */
  writing: string;
  entries: Entry[];
  words: string;
  notice: string;
  /** Whether a guest's chats stay in this browser when the tab is closed. */
  isKept: boolean;
  /** Whether the service is writing an answer in this chat, which this tab is about to follow. */
  isAnswered: boolean;
  /** Whether the chat is kept nowhere. */
  isTemporary: boolean;
  /** What was deleted a moment ago, and can be brought back. */
  leaving: Entry | null;
}

export const PLAIN: service.Knobs = { system: "", temperature: null, topP: null, maxTokens: null, seed: null };

export const newId = () => crypto.getRandomValues(new Uint32Array(3)).reduce((text, part) => text + part.toString(36), "");
export const newSeed = () => crypto.getRandomValues(new Uint32Array(1))[0]! & 0x7fffffff;

/** How ids of conversations that the service keeps begin. */
export const STORED = "conv_";

/** The conversation that an address names; empty: none. */
export function idOf(place: Location): string {
  return /^\/c\/(\w+)$/.exec(place.pathname)?.[1] ?? "";
}

/** Puts the conversation into the page's address. */
export function name(id: string): void {
  if (location.pathname !== `/c/${id}`) history.pushState(null, "", `/c/${id}`);
}

/** JSON that was kept; null: there is none, or it is broken. */
export function parsed(text: string | null): unknown {
  try {
    return text === null ? null : JSON.parse(text);
  } catch {
    return null;
  }
}
