// @vitest-environment jsdom
// The files of a question: read, shown, sent, kept with the draft, and the same question again in what the service stores.
import { h, render } from "preact";
import { afterEach, beforeEach, expect, test, vi } from "vitest";

import { Attaching, costOf } from "./attaching";
import { Chat } from "./chat";
import { partsOf } from "./file_view";
import { chatContent, filesOf, isSame, itemContent, pagesOf, textOf } from "./files";
import { TabShelf } from "./shelf";
import { Markdown } from "./text";
import { treeOfItems } from "./stored";
import { asMarkdown, exported, imported } from "./transfer";
import { EMPTY, type Said, added, path, turn } from "./tree";

const CONTRACT = { name: "contract.pdf", pages: 12, text: "The rent is 900." };
const SAID: Said = { role: "user", content: "What is the rent?", files: [CONTRACT] };
const PARTS = [
  { type: "input_file", filename: "contract.pdf", text: "The rent is 900.", pages: 12 },
  { type: "input_text", text: "What is the rent?" },
];

class Channel {
  onmessage = null;
  postMessage(): void {}
  close(): void {}
}

interface Asked {
  name: string;
  model: string;
  text: string;
  signal: AbortSignal | null;
}

let asked: Asked[] = [];
/** Answers the next readings, in turn; after the last one, that it is read. */
let answers: Response[] = [];
let stuck = false;
/** The chat completions asked for, and what they are answered with. */
let questions: { messages: { content: unknown }[] }[] = [];
let refusals: Response[] = [];
let ids = 0;
const newId = () => `t${(ids += 1)}`;
const failed = (status: number, message: string, headers = {}) => new Response(JSON.stringify({ error: { message, code: "invalid_file" } }), { status, headers });

beforeEach(() => {
  [asked, answers, stuck, questions, refusals] = [[], [], false, [], []];
  sessionStorage.clear();
  vi.stubGlobal("BroadcastChannel", Channel);
  vi.stubGlobal("matchMedia", () => ({ matches: false }));
  vi.stubGlobal("fetch", async (place: string, init: RequestInit = {}) => {
    if (place === "/v1/chat/completions") {
      questions.push(JSON.parse(init.body as string) as { messages: { content: unknown }[] });
      return refusals.shift() ?? new Response(`data: ${JSON.stringify({ choices: [{ delta: { content: "900." }, finish_reason: "stop" }] })}\n\ndata: [DONE]\n\n`);
    }
    if (place === "/health") return new Response("{}");
    if (place === "/v1/models") return new Response(JSON.stringify({ data: [{ id: "m", max_context_tokens: 8192, capabilities: ["chat"], sampling: {}, asleep: false }] }));
    expect(place).toBe("/v1/documents");
    const form = init.body as FormData;
    const file = form.get("file") as File;
    const text = await file.text();
    asked.push({ name: file.name, model: String(form.get("model") ?? ""), text, signal: init.signal ?? null });
    if (stuck) return await new Promise<Response>((_, reject) => init.signal?.addEventListener("abort", () => reject(new Error("aborted"))));
    const read = { filename: file.name, pages: 12, notes: [], text, tokens: text.length, context_tokens: 8192, expected_s: 12.3, attention_s: 2.3 };
    return answers.shift() ?? new Response(JSON.stringify(read));
  });
});
afterEach(() => vi.unstubAllGlobals());

async function begun(): Promise<Chat> {
  const chat = new Chat(sessionStorage, false);
  await chat.begin("");
  return chat;
}

const file = (name = "contract.pdf", text = CONTRACT.text) => new File([text], name);
const states = (chat: Chat) => chat.state.files.map((one) => `${one.name}: ${one.status}`);
const readAll = (chat: Chat) => vi.waitFor(() => expect(chat.state.files.every((one) => one.status !== "reading")).toBe(true));

test("stand before the question, in each dialect", () => {
  expect(chatContent(SAID)).toEqual([
    { type: "file", file: { filename: "contract.pdf", text: "The rent is 900.", pages: 12 } },
    { type: "text", text: "What is the rent?" },
  ]);
  expect(itemContent(SAID)).toEqual(PARTS);
  expect([chatContent({ role: "user", content: "hi" }), itemContent({ role: "user", content: "hi" })]).toEqual(["hi", "hi"]);
  expect([filesOf(PARTS), textOf(PARTS)]).toEqual([[CONTRACT], "What is the rent?"]);
  expect(filesOf(chatContent(SAID) as object[])).toEqual([CONTRACT]);
  expect(["a.pdf", "a.XLSX", "a.pptx"].map((name) => pagesOf({ name, pages: 1, text: "" }))).toEqual(["1 page", "1 sheet", "1 slide"]);
});

test("make another question of the same words", () => {
  expect(isSame(SAID, { ...SAID, files: [{ ...CONTRACT, pages: null }] })).toBe(true);
  expect(isSame(SAID, { ...SAID, files: [{ ...CONTRACT, text: "" }] })).toBe(false);
  expect(isSame(SAID, { content: SAID.content })).toBe(false);
  const stored = (content: string | object[], at: number) => [
    { id: `q${at}`, type: "message", role: "user", content, parent: "root" }, { id: `a${at}`, type: "message", role: "assistant", content: "900.", parent: `q${at}` },
  ];
  const tree = treeOfItems([...stored(PARTS, 1), ...stored(PARTS, 2), ...stored("What is the rent?", 3)], newId);
  const shown = (tree.children[""] ?? []).map((id) => ({ files: tree.turns[id]!.files, answers: tree.children[id]!.length }));
  expect(shown).toEqual([{ files: [CONTRACT], answers: 2 }, { files: undefined, answers: 1 }]);
});

test("are exported, imported, named and searched", async () => {
  const tree = added(EMPTY, turn({ id: "q", parent: "", role: "user", text: "What is the rent?", files: [CONTRACT] }));
  expect(asMarkdown("Rent", tree)).toBe("# Rent\n\n## You\n\nFiles: contract.pdf (12 pages)\n\nWhat is the rent?\n");
  for (const text of [exported("Rent", tree), JSON.stringify([{ role: "user", content: chatContent(SAID) }])]) {
    const [one] = imported(text, newId);
    expect(path(one!.tree)[0]).toMatchObject({ text: "What is the rent?", files: [CONTRACT] });
  }
  const shelf = new TabShelf(sessionStorage, newId);
  shelf.keep("c", tree);
  const found = async (words: string) => (await shelf.list(words)).entries.map((one) => one.passage ?? one.title);
  expect([await found("rent?"), await found("contract"), await found("is 900"), await found("no such")]).toEqual([
    ["What is the rent?"], ["contract.pdf"], ["The rent is 900."], [],
  ]);
});

test("are cited by an answer, which opens the passage", () => {
  const results = [{ filename: "a.pdf", page: 3, text: "The rent is 900." }, { filename: "b.txt", page: null, text: "Call Ann." }];
  const stored = [
    { id: "q", type: "message", role: "user", content: "Rent?", parent: "root" },
    { id: "fs", type: "file_search_call", results, parent: "q" },
    { id: "rs", type: "reasoning", content: [{ text: "hm" }], parent: "fs" },
    { id: "m", type: "message", role: "assistant", content: [{ text: "It is 900 [1], says Ann [2][9]." }], parent: "rs" },
    { id: "q2", type: "message", role: "user", content: "Sure?", parent: "m" },
    { id: "m2", type: "message", role: "assistant", content: "Yes [1].", parent: "q2" },
  ];
  const [, answer, , last] = path(treeOfItems(stored, newId));
  expect([answer!.thought, answer!.sources, last!.sources]).toEqual([
    "hm", [{ name: "a.pdf", page: 3, text: "The rent is 900." }, { name: "b.txt", page: null, text: "Call Ann." }], undefined,
  ]);
  const opened: string[] = [];
  const place = document.createElement("div");
  render(h(Markdown, { text: answer!.text, isGrowing: false, sources: answer!.sources, view: ({ name }) => opened.push(name) }), place);
  const links = [...place.querySelectorAll<HTMLElement>(".cite")];
  expect(links.map((one) => one.getAttribute("aria-label"))).toEqual(["Source 1: a.pdf, page 3", "Source 2: b.txt"]);
  expect(place.textContent?.trim()).toBe("It is 900 [1], says Ann [2][9].");
  links[1]!.click();
  expect(opened).toEqual(["b.txt"]);
});

test.each([
  ["Both [1, 2], all [1-3].", ["1", "2", "1", "2", "3"], "Both [1][2], all [1][2][3]."],
  ["押金【 2 】［1、3］", ["2", "1", "3"], "押金[2][1][3]"],
  ["Not there [7], [2-9], [3-1], in part [3, 8].", ["3"], "Not there [7], [2-9], [3-1], in part [3]."],
  ["In `a[1]` an index.\n\n    b[2]\n\nThen [3].", ["3"], null],
])("are cited in lists and ranges, and not by code: %s", (text, numbers, seen) => {
  const sources = ["a", "b", "c"].map((name) => ({ name, page: null, text: "x" }));
  const place = document.createElement("div");
  render(h(Markdown, { text, isGrowing: false, sources, view: () => undefined }), place);
  expect([...place.querySelectorAll(".cite")].map((one) => one.textContent)).toEqual(numbers.map((number) => `[${number}]`));
  if (seen !== null) expect(place.textContent?.trim()).toBe(seen);
});

test("are read one after the other, by the chat's model, and sent", async () => {
  const chat = await begun();
  chat.files.add([file(), file("notes.md", "Call Ann.")]);
  expect(states(chat)).toEqual(["contract.pdf: reading", "notes.md: reading"]);
  await chat.ask("What is the rent?"); // not yet
  await readAll(chat);
  expect(asked.map(({ name, model }) => [name, model])).toEqual([["contract.pdf", "m"], ["notes.md", "m"]]);
  expect(questions).toEqual([]);
  await chat.ask("What is the rent?");
  const parts = questions[0]!.messages[0]!.content as { type: string; file?: { filename: string } }[];
  expect(parts.map((one) => one.file?.filename ?? one.type)).toEqual(["contract.pdf", "notes.md", "text"]);
  expect([chat.state.files, sessionStorage.getItem("redoubt.files")]).toEqual([[], null]);
  const [question] = path(chat.state.tree);
  await chat.edit(question!.id, "And the deposit?");
  await chat.retry(path(chat.state.tree)[1]!.id);
  expect(questions.map((one) => one.messages[0]!.content)).toEqual([parts, ...Array<unknown>(2).fill([...parts.slice(0, 2), { type: "text", text: "And the deposit?" }])]);
  chat.flush(true);
  const again = await begun();
  expect(path(again.state.tree)[0]!.files!.map((one) => one.name)).toEqual(["contract.pdf", "notes.md"]);
});

test("of a refused question, or of a refused edit, are the draft's again", async () => {
  const chat = await begun();
  chat.files.add([file()]);
  await readAll(chat);
  refusals = [failed(400, "No.")];
  await chat.ask("What is the rent?");
  expect([states(chat), chat.state.draft, path(chat.state.tree)]).toEqual([["contract.pdf: ready"], "What is the rent?", []]);
  await chat.again();
  expect(states(chat)).toEqual([]);
  refusals = [failed(400, "No.")];
  await chat.edit(path(chat.state.tree)[0]!.id, "And the deposit?");
  expect([states(chat), chat.state.draft]).toEqual([["contract.pdf: ready"], "And the deposit?"]);
  expect(path(chat.state.tree).map((one) => one.text)).toEqual(["What is the rent?", "900."]);
});

test("that cannot be read say why, and hold the question back", async () => {
  const chat = await begun();
  answers = [failed(400, "photo.png is a picture, which has no text."), failed(503, "Busy.", { "Retry-After": "0" })];
  chat.files.add([file("photo.png"), file()]);
  await readAll(chat);
  expect(states(chat)).toEqual(["photo.png: failed", "contract.pdf: ready"]);
  expect(asked.map((one) => one.name)).toEqual(["photo.png", "contract.pdf", "contract.pdf"]);
  answers = [failed(413, "The request body is larger than 33554432 bytes."), failed(500, "No.")];
  chat.files.add([file("large.pdf"), file("unlucky.pdf")]);
  await readAll(chat);
  const [large, unlucky] = chat.state.files.slice(2);
  expect([large!.error, large!.mayRetry, unlucky!.mayRetry]).toEqual([expect.stringContaining("too large to be read"), false, true]);
  chat.files.remove(large!.id);
  chat.files.again(unlucky!.id);
  await readAll(chat);
  expect(states(chat)).toEqual(["photo.png: failed", "contract.pdf: ready", "unlucky.pdf: ready"]);
  expect(chat.state.files[0]).toMatchObject({ error: "photo.png is a picture, which has no text.", mayRetry: false });
  await chat.ask("What is the rent?");
  expect(questions).toEqual([]);
  chat.files.remove(chat.state.files[0]!.id);
  await chat.ask("What is the rent?");
  expect(questions.length).toBe(1);
});

test("that are removed are read no further", async () => {
  const chat = await begun();
  stuck = true;
  chat.files.add([file(), file("other.txt")]);
  await vi.waitFor(() => expect(asked.length).toBe(1));
  chat.files.remove(chat.state.files[1]!.id); // before its turn
  chat.files.remove(chat.state.files[0]!.id);
  expect([asked[0]!.signal!.aborted, states(chat)]).toEqual([true, []]);
  stuck = false;
  chat.files.add([file("third.txt")]);
  await readAll(chat);
  expect(asked.map((one) => one.name)).toEqual(["contract.pdf", "third.txt"]);
});

test("are kept with the draft, and what is lost is told", async () => {
  const chat = await begun();
  chat.files.add([file()]);
  await readAll(chat);
  expect(new Chat(sessionStorage, false).state.files).toMatchObject([{ ...CONTRACT, tokens: 16, status: "ready" }]);
  stuck = true;
  chat.files.add([file("slow.pdf")]);
  const reloaded = new Chat(sessionStorage, false);
  expect([states(reloaded), reloaded.state.notice]).toEqual([["contract.pdf: ready"], "Not kept with your draft: slow.pdf. Attach again what you need."]);
  expect(new Chat(sessionStorage, false).state.notice).toBe(""); // once
  chat.files.remove(chat.state.files[1]!.id);
  stuck = false;
  chat.files.add([file("large.txt", "x".repeat(6_000_000))]);
  await readAll(chat);
  expect(new Chat(sessionStorage, false).state.notice).toMatch(/contract.pdf, large.txt/);
});

test("that were pasted can be text instead", async () => {
  const chat = await begun();
  chat.draft("See .");
  chat.files.paste("A long letter", 4);
  await readAll(chat);
  chat.files.paste("Another one", 0);
  await readAll(chat);
  expect(states(chat)).toEqual(["Pasted text.txt: ready", "Pasted text 2.txt: ready"]);
  await chat.files.asText(chat.state.files[0]!.id);
  expect([chat.state.draft, states(chat)]).toEqual(["See A long letter.", ["Pasted text 2.txt: ready"]]);
});

test("are counted again for another model", async () => {
  const chat = await begun();
  chat.files.add([file()]);
  await readAll(chat);
  chat.choose("other");
  chat.files.recount();
  expect(chat.state.files[0]!.tokens).toBe(null);
  await vi.waitFor(() => expect(chat.state.files[0]!.tokens).toBe(16));
  expect(asked.at(-1)).toMatchObject({ name: "contract.pdf.txt", model: "other", text: CONTRACT.text });
  chat.files.recount();
  expect(asked.length).toBe(2);
});

test("say what they cost before they are sent, and what of them is missing", async () => {
  const chat = await begun();
  const read = (values: object) => new Response(JSON.stringify({ filename: "a.pdf", pages: 3, notes: ["Page 2 has no text: it may be a scan."], text: "A", tokens: 3456, context_tokens: 8192, expected_s: 12.3, attention_s: 2.3, ...values }));
  answers = [read({}), read({ tokens: 1000, expected_s: 4, attention_s: 0.2 }), read({ tokens: 7500, expected_s: 0.2 }), read({ tokens: 9000 })];
  const place = document.createElement("div");
  chat.files.add([file()]);
  await readAll(chat);
  expect(costOf(chat.state).text).toBe("Fits: 3,456 of 8,192 tokens. Reading takes up to 13 seconds here.");
  chat.files.add([file()]);
  await readAll(chat);
  expect(costOf(chat.state).text).toBe("Fits: 4,456 of 8,192 tokens. Reading takes up to 18 seconds here."); // and not 16.3
  chat.files.remove(chat.state.files[1]!.id);
  render(h(Attaching, { chat }), place);
  expect(place.querySelector(".attaching")?.textContent).toContain("a.pdf 3 pages, 3,456 tokensPage 2 has no text: it may be a scan.");
  expect(place.querySelector("[role=status]")?.textContent).toBe("a.pdf is attached, 3 pages, 3,456 tokens. Page 2 has no text: it may be a scan.");
  const asks = turn({ id: "q", parent: "", role: "user", text: "hi" });
  const answer = turn({ id: "a", parent: "q", role: "assistant", text: "Hi.", usage: { promptTokens: 5000, answerTokens: 9, rememberedTokens: 0 } });
  chat.set({ tree: added(added(EMPTY, asks), answer) });
  expect(costOf(chat.state).text).toMatch(/^Fits when the oldest turns are left out: 8,192 of 8,192 tokens\./);
  for (const [text, isTooLong] of [[/^Fits, but leaves only 692 of 8,192 tokens for the answer. Read in less than a second.$/, false], [/^Too long for this model: 9,000 tokens/, true]] as const) {
    chat.files.remove(chat.state.files[0]!.id);
    chat.files.add([file()]);
    await readAll(chat);
    expect(costOf(chat.state)).toEqual({ text: expect.stringMatching(text) as string, isTooLong });
  }
});

test("are drawn in parts that are the whole", () => {
  const text = Array.from({ length: 3000 }, (_, line) => `Line ${line}`).join("\n");
  expect([partsOf(text).length > 1, partsOf(text).join("") === text, partsOf("")]).toEqual([true, true, []]);
});
