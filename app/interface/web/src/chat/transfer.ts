// Conversations as files: our format, and exports of other chat clients. Knows no page and no service.
import { type Part, filesOf, itemContent, pagesOf, textOf } from "./files";
import { type Item, treeOfItems } from "./stored";
import { apart } from "./thought";
import { type Attached, EMPTY, type Tree, added, path, saidOf, treeOf, turn } from "./tree";

/** The service's limit of messages per conversation. */
const MOST_MESSAGES = 2048;

export interface Imported {
  title: string;
  tree: Tree;
}

/** The service's export format. */
export function exported(title: string, tree: Tree): string {
  const items = Object.values(tree.turns).flatMap((one): object[] => {
    const parent = one.parent || "root";
    const message = { id: one.id, type: "message", role: one.role, content: itemContent(saidOf(one)) };
    if (!one.thought) return [{ ...message, parent }];
    const id = `rs_${one.id}`;
    return [{ id, type: "reasoning", content: [{ type: "reasoning_text", text: one.thought }], parent }, { ...message, parent: id }];
  });
  return JSON.stringify({ object: "conversation.export", title, items }, null, 1);
}

/** Exports the shown branch as Markdown. */
export function asMarkdown(title: string, tree: Tree): string {
  const parts = path(tree).flatMap((one) => {
    const thought = one.thought ? ["## Thought", one.thought] : [];
    const files = one.files ? [`Files: ${one.files.map(named).join(", ")}`] : [];
    return [...thought, `## ${one.role === "user" ? "You" : "Answer"}`, ...files, one.text];
  });
  return [`# ${title}`, ...parts].join("\n\n") + "\n";
}

/** "contract.pdf (12 pages)". */
const named = (file: Attached): string => (file.pages === null ? file.name : `${file.name} (${pagesOf(file)})`);

/**
 * Reads the conversations of a file: exports of Redoubt, llama-server or Open WebUI, or a list of messages as for
 * /v1/chat/completions. Throws an Error that says what is wrong.
 */
export function imported(text: string, newId: () => string): Imported[] {
  let file: unknown;
  try {
    file = JSON.parse(text);
  } catch {
    throw new Error("This file is not JSON: export the chat as JSON.");
  }
  const found = (isList(file) && !isSaid(file[0]) ? file : [file]).flatMap((one) => importedOne(one, newId) ?? []);
  if (!found.length) throw new Error("There is no conversation in this file that can be read here.");
  return found;
}

type Fields = Record<string, unknown>;
interface Message {
  id: string;
  parent: string | null;
  role: "user" | "assistant";
  text: string;
  files?: Attached[];
}

const isFields = (value: unknown): value is Fields => typeof value === "object" && value !== null && !Array.isArray(value);
const isList = (value: unknown): value is unknown[] => Array.isArray(value);
const isSaid = (value: unknown): boolean => isFields(value) && typeof value.role === "string" && "content" in value;
const words = (value: unknown): string => (typeof value === "string" ? value : "");

/** Throws an Error if there are more messages than the limit. */
function few<One>(messages: One[]): One[] {
  if (messages.length > MOST_MESSAGES) throw new Error(`A chat of this file has more than ${MOST_MESSAGES} messages.`);
  return messages;
}

function importedOne(value: unknown, newId: () => string): Imported | null {
  const one = isList(value) ? { messages: value } : value;
  if (!isFields(one)) return null;
  if (one.object === "conversation.export" && isList(one.items)) {
    return whole(words(one.title), treeOfItems(few(one.items).filter(isFields) as unknown as Item[], newId));
  }
  const chat = isFields(one.chat) ? one.chat : one;
  const kept = isFields(chat.history) && isFields(chat.history.messages) ? Object.values(chat.history.messages) : chat.messages;
  const title = words(one.title) || words(chat.title) || (isFields(one.conv) ? words(one.conv.name) : "");
  return isList(kept) ? whole(title, treeOfMessages(few(kept).flatMap((each) => messageOf(each) ?? []), newId)) : null;
}

const whole = (title: string, tree: Tree): Imported | null => (path(tree).length ? { title: title.slice(0, 200), tree } : null);

function messageOf(value: unknown): Message | null {
  if (!isFields(value) || (value.role !== "user" && value.role !== "assistant")) return null;
  const parts = isList(value.content) ? (value.content.filter(isFields) as Part[]) : null;
  const content = parts ? parts.map((part) => textOf([part])).filter(Boolean).join("\n") : words(value.content);
  const files = filesOf(parts);
  const parent = "parentId" in value ? value.parentId : value.parent;
  if (!content && !files.length) return null;
  return { id: words(value.id), parent: parent === undefined ? null : words(parent), role: value.role, text: content, ...(files.length && { files }) };
}

/** Messages with explicit parents, or in a sequence. */
function treeOfMessages(messages: Message[], newId: () => string): Tree {
  const ids = new Set(messages.map((one) => one.id));
  if (!messages.some((one) => one.id && one.parent && ids.has(one.parent))) {
    return treeOf(messages.map(({ role, text, files }) => ({ role, content: text, ...(files && { files }) })), newId);
  }
  let tree = EMPTY;
  const places = new Map<string, string>();
  for (const one of messages) {
    const id = newId();
    const parent = places.get(one.parent ?? "") ?? "";
    if (one.id) places.set(one.id, id);
    const { text, files } = one;
    const texts = one.role === "assistant" ? apart(text) : { text, ...(files && { files }) };
    tree = added(tree, turn({ id, parent, role: one.role, ...texts, status: "done" }));
  }
  return tree;
}
