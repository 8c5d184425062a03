// The user's collections at the service: what is in one, and adding to it. Knows no page.
import { ApiFailure, type ListPart, call, hasEnded, inWords, wholeList } from "../common/api";
import { bytes, counted } from "../common/numbers";

export interface Counts {
  in_progress: number;
  completed: number;
  failed: number;
  cancelled: number;
  total: number;
}

export interface Collection {
  id: string;
  name: string;
  usage_bytes: number;
  file_counts: Counts;
  /** Whether it is somebody else's. */
  shared: boolean;
}

export interface Document {
  id: string;
  filename: string;
  status: "in_progress" | "completed" | "failed" | "cancelled";
  last_error: { message: string } | null;
  usage_bytes: number;
  pages: number | null;
  passages: number | null;
  /** What of it could not be read. */
  notes: string[];
  /** With the path of what was added here, and in its folder; what is added under the same path replaces it. */
  attributes: Record<string, unknown> | null;
}

const EVERY = "/v1/vector_stores";
export const at = (id: string, below = "") => `${EVERY}/${encodeURIComponent(id)}${below}`;

const whole = <One>(path: string) => wholeList((after) => call<ListPart<One>>("GET", `${path}?limit=100${after}`));

export const collections = () => whole<Collection>(EVERY);
export const collectionOf = (id: string) => call<Collection>("GET", at(id));
export const documentsOf = (id: string) => whole<Document>(at(id, "/files"));

/** Documents in one part of a list. */
const PART = 100;

/** What is shown of a collection: a list may have thousands of documents, so parts of it come when they are asked for. */
export interface Shown {
  counts: Counts;
  bytes: number;
  /** The newest ones, newest first. */
  documents: Document[];
  hasMore: boolean;
}

const partOf = (id: string, after: string | undefined, limit: number) =>
  call<ListPart<Document>>("GET", at(id, `/files?limit=${limit}${after === undefined ? "" : `&after=${encodeURIComponent(after)}`}`));

const sized = (shown: Pick<Shown, "documents" | "hasMore">, { file_counts, usage_bytes }: Collection): Shown => ({
  ...shown, counts: file_counts, bytes: usage_bytes,
});

/** The first part. */
export async function opened(id: string): Promise<Shown> {
  const now = await collectionOf(id); // before the list: what ends between them is asked for again
  const { data, has_more } = await partOf(id, undefined, PART);
  return sized({ documents: data, hasMore: has_more }, now);
}

/** One part more. */
export async function more(id: string, shown: Shown): Promise<Shown> {
  const { data, has_more } = await partOf(id, shown.documents.at(-1)?.id, PART);
  return { ...shown, documents: [...shown.documents, ...data], hasMore: has_more };
}

/** Asks again for the parts with documents that were being read. now: the collection, whose counts have changed. */
export async function renewed(id: string, shown: Shown, now: Collection): Promise<Shown> {
  const documents: Document[] = [];
  for (let begin = 0; begin < shown.documents.length; begin += PART) {
    const some = shown.documents.slice(begin, begin + PART);
    if (!some.some(({ status }) => status === "in_progress")) {
      documents.push(...some);
      continue;
    }
    const { data } = await partOf(id, documents.at(-1)?.id, some.length);
    const found = new Map(data.map((one) => [one.id, one]));
    documents.push(...some.flatMap((one) => found.get(one.id) ?? []));
  }
  return sized({ documents, hasMore: shown.hasMore }, now);
}

/** Without a document that was taken out. */
export const without = (shown: Shown, document: string, now: Collection): Shown =>
  sized({ documents: shown.documents.filter(({ id }) => id !== document), hasMore: shown.hasMore }, now);

export const isSame = (one: Counts, other: Counts): boolean =>
  one.total === other.total && one.in_progress === other.in_progress && one.completed === other.completed && one.failed === other.failed;

/** The files of a choice that are meant: a folder has hidden ones, too. */
export const meant = (files: File[]) => files.filter(({ name, webkitRelativePath: path }) => !(path || name).split("/").some((part) => part.startsWith(".")));

const MOST_PATH_CHARS = 512;
const pathOf = ({ attributes }: Document) => (typeof attributes?.path === "string" ? attributes.path : "");

export const nameOf = (one: Document) => pathOf(one) || one.filename || "A document";

/**
 * Adds files to a collection, one after the other; they are read in the background. Returns what could not be added. Throws
 * ApiFailure when the session has ended.
 */
export async function add(id: string, files: File[], tell: (done: number, name: string) => void): Promise<string[]> {
  const failures: string[] = [];
  for (const [done, file] of files.entries()) {
    tell(done, file.name);
    const form = new FormData();
    form.set("purpose", "assistants");
    form.set("file", file);
    try {
      const stored = await call<{ id: string }>("POST", "/v1/files", form);
      const path = (file.webkitRelativePath || file.name).slice(-MOST_PATH_CHARS);
      await call("POST", at(id, "/files"), { file_id: stored.id, attributes: { path } }).catch(async (error: unknown) => {
        await call("DELETE", `/v1/files/${stored.id}`).catch(() => undefined);
        throw error;
      });
    } catch (error) {
      if (hasEnded(error)) throw error;
      const failure = error instanceof ApiFailure ? error : null;
      failures.push(failure?.code === "insufficient_quota" ? `${file.name}: you have no room for it.` : failure?.status === 413 ? `${file.name}: it is too large.` : `${file.name}: ${inWords(error)}`);
    }
  }
  return failures;
}

/** Deletes documents that have a newer one with the same path: one that was read only when that was. Returns whether there were any. */
export async function replace(id: string, newestFirst: Document[]): Promise<boolean> {
  const [tried, read] = [new Set<string>(), new Set<string>()];
  const replaced = newestFirst.filter((one) => {
    const path = pathOf(one);
    if (!path || one.status === "in_progress") return false;
    const isOld = (one.status === "completed" ? read : tried).has(path);
    tried.add(path);
    if (one.status === "completed") read.add(path);
    return isOld;
  });
  for (const one of replaced) await remove(id, one.id);
  return replaced.length > 0;
}

/** Takes a document out, and deletes its file. */
export async function remove(id: string, document: string): Promise<void> {
  await call("DELETE", at(id, `/files/${encodeURIComponent(document)}?with_files=true`)).catch((error: unknown) => {
    if (!(error instanceof ApiFailure && error.status === 404)) throw error;
  });
}

/** "3 documents, 120 passages, 1.2 MB"; without the passages if only a part of the list is shown. */
export function sizeOf({ counts, bytes: size, documents, hasMore }: Shown): string {
  const passages = documents.reduce((all, one) => all + (one.passages ?? 0), 0);
  return [counted(counts.total, "document"), hasMore ? "" : counted(passages, "passage"), bytes(size)].filter(Boolean).join(", ");
}

/** What is said of a document. */
export function stateOf({ status, last_error, pages, passages, usage_bytes, notes }: Document): string {
  if (status === "in_progress") return "Being read…";
  if (status === "cancelled") return "It was not read.";
  if (last_error) return `It could not be read. ${last_error.message}`;
  const sizes = [pages === null ? "" : counted(pages, "page"), counted(passages ?? 0, "passage"), bytes(usage_bytes)];
  return [`${sizes.filter(Boolean).join(", ")}.`, ...notes].join(" ");
}
