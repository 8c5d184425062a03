// The chat's state and its helpers. Knows no page.
import type * as service from "./service";
import type { Entry } from "./shelf";
import type { Attached, Failure, Tree } from "./tree";

export { PLAIN } from "./chat_settings";

export interface User {
  user_id: string;
  name: string;
  role: "user" | "admin";
}

export interface State {
  /** The user whose session the browser has; null: a guest, or there are no accounts. */
  user: User | null;
  models: service.Model[];
  /** Empty: no model is known yet. */
  model: string;
  isReachable: boolean;
  needsKey: boolean;
  /** The settings of the open chat. */
  knobs: service.Knobs;
  key: string;
  /** Empty: a new chat. */
  id: string;
  tree: Tree;
  draft: string;
  /** The files that are attached to the draft. */
  files: DraftFile[];
  /** The collections that can be asked; none are known before something is typed. */
  collections: service.Collection[];
  /** The file that is looked at; null: none. */
  viewed: Attached | null;
  /** The answer that is being generated; empty: none. */
  writing: string;
  entries: Entry[];
  /** Whether there are more conversations than `entries`. */
  hasMore: boolean;
  words: string;
  notice: string;
  /** Whether a guest's chats stay in this browser when the tab is closed. */
  isKept: boolean;
  /** Whether the service is generating an answer in this chat, which this tab is about to follow. */
  isAnswered: boolean;
  /** Whether the chat is temporary, which is not stored. */
  isTemporary: boolean;
  /** The last deleted conversation, which can be restored. */
  leaving: Entry | null;
  /** What the service has not taken; null: nothing. */
  refused: Refused | null;
}

/** A file of the draft. */
export interface DraftFile extends Attached {
  id: string;
  status: "reading" | "ready" | "failed";
  /** Why it could not be read. */
  error: string;
  /** Whether it may be read at another time. */
  mayRetry?: boolean;
  /** Sentences about what of it could not be read. */
  notes: string[];
  /** Null: not counted for this model yet. */
  tokens: number | null;
  /** Those of the model for which they were counted. */
  contextTokens: number;
  /** The model for which they were counted. */
  model: string;
  /** Seconds until the first token if all of it must be computed; null: unknown. */
  expectedS: number | null;
  /** What of them is attention's. */
  attentionS: number | null;
  /** Of a pasted text: its place in the draft. */
  pastedAt?: number;
}

/** A question, or another answer, that the service has refused. */
export interface Refused {
  failure: Failure;
  /** The turn below which the draft is asked again. */
  parent: string;
  /** The question of this chat that was to be answered; empty: the one that is a draft again. */
  question: string;
  /** The answer that was to be continued. */
  goOn?: string;
}

/** Whether the draft's files can be sent: none is still being read, and none failed. */
export const areRead = ({ files }: State): boolean => files.every((one) => one.status === "ready");

export const newId = () => crypto.getRandomValues(new Uint32Array(3)).reduce((text, part) => text + part.toString(36), "");
export const newSeed = () => crypto.getRandomValues(new Uint32Array(1))[0]! & 0x7fffffff;

/** The prefix of ids of conversations that the service stores. */
export const STORED = "conv_";

/** The conversation in an address; empty: none. */
export function idOf(place: Location): string {
  return /^\/c\/(\w+)$/.exec(place.pathname)?.[1] ?? "";
}

/** Puts the conversation into the page's address. */
export function name(id: string): void {
  if (location.pathname !== `/c/${id}`) history.pushState(null, "", `/c/${id}`);
}

/** Parses stored JSON; null: there is none, or it is invalid. */
export function parsed(text: string | null): unknown {
  try {
    return text === null ? null : JSON.parse(text);
  } catch {
    return null;
  }
}
