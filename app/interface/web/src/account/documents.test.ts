import { afterEach, beforeEach, expect, test, vi } from "vitest";

import { type Counts, type Document, type Shown, add, documentsOf, isSame, meant, more, opened, remove, renewed, replace, sizeOf, stateOf, without } from "./documents";

let asked: string[] = [];
let answers: Record<string, () => Response> = {};

const json = (value: unknown, status = 200) => new Response(JSON.stringify(value), { status });
const refused = (status: number, code: string, message: string) => json({ error: { code, message } }, status);
const one = (values: Partial<Document>): Document => ({
  id: "file-1", filename: "lease.md", status: "completed", last_error: null, usage_bytes: 1500, pages: null, passages: 3, notes: [], attributes: null, ...values,
});

const counts = (values: Partial<Counts>): Counts => ({ in_progress: 0, completed: 0, failed: 0, cancelled: 0, total: 0, ...values });
const collection = (file_counts: Counts) => ({ id: "vs_1", name: "", usage_bytes: 3000, file_counts, shared: false });
const many = (begin: number, end: number, values: Partial<Document> = {}) =>
  Array.from({ length: end - begin }, (_, at) => one({ id: `file-${begin + at}`, ...values }));

beforeEach(() => {
  [asked, answers] = [[], {}];
  let stored = 0;
  vi.stubGlobal("fetch", async (path: string, init: RequestInit) => {
    const form = init.body instanceof FormData ? init.body : null;
    const file = form && `${String(form.get("purpose"))} ${(form.get("file") as File).name}`;
    const body = form ? file : (init.body ?? "");
    asked.push(`${init.method} ${path} ${String(body)}`.trim());
    expect(form === null || !("Content-Type" in (init.headers as object))).toBe(true);
    const answer = answers[form ? String(file) : path];
    if (answer) return answer();
    return json(path === "/v1/files" ? { id: `file-${(stored += 1)}` } : {});
  });
});
afterEach(() => vi.unstubAllGlobals());

test("files are added one after the other, and those that can not be are told", async () => {
  answers["assistants huge.pdf"] = () => refused(413, "request_too_large", "");
  answers["assistants last.md"] = () => refused(429, "insufficient_quota", "");
  answers["assistants odd.bin"] = () => refused(400, "invalid_value", "No text.");
  const told: string[] = [];
  const files = ["lease.md", "huge.pdf", "menu.md", "last.md", "odd.bin"].map((name) => new File(["text"], name));
  const failures = await add("vs_1", files, (done, name) => told.push(`${done} ${name}`));
  expect(failures).toEqual(["huge.pdf: it is too large.", "last.md: you have no room for it.", "odd.bin: No text."]);
  expect(told).toEqual(["0 lease.md", "1 huge.pdf", "2 menu.md", "3 last.md", "4 odd.bin"]);
  expect(asked).toContain('POST /v1/vector_stores/vs_1/files {"file_id":"file-1","attributes":{"path":"lease.md"}}');
});

test("a file that the collection does not take is not kept", async () => {
  answers["/v1/vector_stores/vs_1/files"] = () => refused(400, "invalid_value", "It is full.");
  const failures = await add("vs_1", [new File(["text"], "lease.md")], () => undefined);
  expect(failures).toEqual(["lease.md: It is full."]);
  expect(asked.at(-1)).toBe("DELETE /v1/files/file-1");
});

test("the end of the session ends it", async () => {
  answers["assistants lease.md"] = () => refused(401, "session_expired", "");
  await expect(add("vs_1", [new File([""], "lease.md"), new File([""], "menu.md")], () => undefined)).rejects.toThrow();
  expect(asked).toHaveLength(1);
});

test("a document goes when a newer one of the same path is read", async () => {
  const of = (id: string, path: string, status: Document["status"] = "completed") => one({ id, status, attributes: path ? { path } : null });
  const newestFirst = [
    of("new", "docs/a.md"), of("read", "b.md", "in_progress"), of("other", "more/a.md"), of("old", "docs/a.md"), of("kept", "b.md"),
    of("failed", "docs/a.md", "failed"), of("unnamed", ""), of("unnamed too", ""),
  ];
  answers["/v1/vector_stores/vs_1/files/old?with_files=true"] = () => refused(404, "not_found", "");
  expect(await replace("vs_1", newestFirst)).toBe(true);
  expect(asked).toEqual(["old", "failed"].map((id) => `DELETE /v1/vector_stores/vs_1/files/${id}?with_files=true`));
  expect(await replace("vs_1", [of("failed", "a.md", "failed"), of("kept", "a.md")])).toBe(false);
  expect(await replace("vs_1", [of("failed", "a.md", "failed"), of("failed too", "a.md", "failed")])).toBe(true);
  answers["/v1/vector_stores/vs_1/files/a%2Fb?with_files=true"] = () => refused(403, "owner_only", "Only its owner.");
  await expect(remove("vs_1", "a/b")).rejects.toThrow("Only its owner.");
});

test("a list comes in parts", async () => {
  answers["/v1/vector_stores/vs_1/files?limit=100"] = () => json({ data: [one({})], last_id: "file-1", has_more: true });
  answers["/v1/vector_stores/vs_1/files?limit=100&after=file-1"] = () => json({ data: [one({ id: "file-2" })], last_id: "file-2", has_more: false });
  expect((await documentsOf("vs_1")).map(({ id }) => id)).toEqual(["file-1", "file-2"]);
});

test("thousands of documents come in parts, and only those that were being read come again", async () => {
  const every = "/v1/vector_stores/vs_1/files?limit=100";
  const [before, after] = [counts({ in_progress: 150, total: 250 }), counts({ in_progress: 140, completed: 10, total: 250 })];
  const part = (data: Document[], has_more: boolean) => () => json({ data, last_id: data.at(-1)?.id ?? "", has_more });
  answers["/v1/vector_stores/vs_1"] = () => json(collection(before));
  answers[every] = part(many(0, 100), true);
  answers[`${every}&after=file-99`] = part(many(100, 200, { status: "in_progress" }), true);
  answers[`${every}&after=file-199`] = part(many(200, 250, { status: "in_progress" }), false);
  let shown: Shown = await more("vs_1", await opened("vs_1"));
  expect([shown.documents.length, shown.hasMore, sizeOf(shown)]).toEqual([200, true, "250 documents, 3 kB"]);
  asked = [];
  answers[`${every}&after=file-99`] = part([...many(100, 150), ...many(151, 200, { status: "in_progress" }), one({ id: "file-200" })], true);
  shown = await renewed("vs_1", shown, collection(after));
  expect(asked).toEqual([`GET ${every}&after=file-99`]);
  expect(shown.documents.map(({ id }) => id)).toEqual([...many(0, 150), ...many(151, 200)].map(({ id }) => id)); // one was taken out meanwhile
  expect([shown.documents.filter(({ status }) => status === "in_progress").length, shown.counts]).toEqual([49, after]);
  expect([isSame(before, { ...before }), isSame(before, after)]).toEqual([true, false]);
  shown = without(shown, "file-3", collection(counts({ total: 249 })));
  expect([shown.documents.some(({ id }) => id === "file-3"), shown.counts.total]).toEqual([false, 249]);
});

test("hidden files of a folder are not meant", () => {
  const file = (path: string) => Object.defineProperty(new File([""], path.split("/").at(-1)!), "webkitRelativePath", { value: path });
  const names = meant([file("docs/a.md"), file("docs/.git/config"), file("docs/.DS_Store"), new File([""], "b.md")]).map(({ name }) => name);
  expect(names).toEqual(["a.md", "b.md"]);
});

test("what is in it is put into words", () => {
  const failed = one({ status: "failed", last_error: { message: "It is a picture." }, passages: null, usage_bytes: 0 });
  const shown = { counts: counts({ completed: 1, failed: 1, total: 2 }), bytes: 1500, documents: [one({}), failed], hasMore: false };
  expect(sizeOf(shown)).toBe("2 documents, 3 passages, 1.5 kB");
  expect(stateOf(one({ pages: 2, notes: ["Page 2 has no text."] }))).toBe("2 pages, 3 passages, 1.5 kB. Page 2 has no text.");
  expect(stateOf(failed)).toBe("It could not be read. It is a picture.");
  expect([one({ status: "in_progress" }), one({ status: "cancelled" })].map(stateOf)).toEqual(["Being read…", "It was not read."]);
});
