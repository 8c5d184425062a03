// The files of a question: their parts in requests and in stored items. Knows no page and no service.
import { counted } from "../common/numbers";
import type { Attached, Said, Source } from "./tree";

/** A part of a message, of chat completions (`text`, `file`) or of items (`input_text`, `output_text`, `input_file`). */
export interface Part {
  type?: string;
  text?: string;
  filename?: string;
  pages?: number | null;
  file?: Part;
}

const named = ({ name, text, pages }: Attached) => ({ filename: name, text, ...(pages === null ? {} : { pages }) });

/** A message's content for /v1/chat/completions. */
export function chatContent({ content, files = [] }: Said): string | object[] {
  if (!files.length) return content;
  return [...files.map((one) => ({ type: "file", file: named(one) })), { type: "text", text: content }];
}

/** A message's content as that of an item, for /v1/responses and /v1/conversations. */
export function itemContent({ content, files = [] }: Said): string | object[] {
  if (!files.length) return content;
  return [...files.map((one) => ({ type: "input_file", ...named(one) })), { type: "input_text", text: content }];
}

const isFile = ({ type }: Part): boolean => type === "input_file" || type === "file";

/** The text of a message's content without its files. */
export function textOf(content: string | Part[] | null | undefined): string {
  return typeof content === "string" ? content : (content ?? []).map((part) => (isFile(part) ? "" : (part.text ?? ""))).join("");
}

/** The files in a message's content. */
export function filesOf(content: string | Part[] | null | undefined): Attached[] {
  if (typeof content === "string") return [];
  return (content ?? []).filter(isFile).map((part) => {
    const { filename, text, pages } = part.file ?? part;
    return { name: String(filename || "File"), text: String(text ?? ""), pages: typeof pages === "number" ? pages : null };
  });
}

/** A passage of a search in collections, as the service tells it. */
export interface Passage {
  filename?: string;
  page?: number | null;
  text?: string;
}

export const sourcesOf = (results: Passage[]): Source[] => results.map(({ filename, page, text }) => (
  { name: filename || "File", page: page ?? null, text: text ?? "" }));

/** "contract.pdf, page 3". */
export const placeOf = ({ name, page }: Source): string => (page === null ? name : `${name}, page ${page}`);

/** "12 pages", "3 slides", "1 sheet"; empty: it has none. */
export function pagesOf({ name, pages }: Attached): string {
  if (pages === null) return "";
  return counted(pages, /\.pptx$/i.test(name) ? "slide" : /\.xlsx$/i.test(name) ? "sheet" : "page");
}

/** Whether two messages say the same. */
export function isSame(one: Pick<Said, "content" | "files">, other: Pick<Said, "content" | "files">): boolean {
  const [ours, theirs] = [one.files ?? [], other.files ?? []];
  const areSame = ours.length === theirs.length && ours.every(({ name, text }, at) => name === theirs[at]!.name && text === theirs[at]!.text);
  return areSame && one.content === other.content;
}
