// @vitest-environment jsdom
// Whatever the order in which answers and other tabs' news arrive, the page ends with what is true.
import { h, render } from "preact";
import { afterEach, beforeEach, expect, test, vi } from "vitest";

import { App } from "./app";
import { Chat } from "./chat";
import { Settings } from "./settings";
import type { Item } from "./stored";
import { path } from "./tree";

interface Held {
  path: string;
  answer: (body: object, status?: number) => void;
  stream: (...events: object[]) => void;
}

let held: Held[] = [];
let sent: string[] = [];

class Channel {
  onmessage: ((event: MessageEvent<string>) => void) | null = null;
  postMessage(): void {}
  close(): void {}
}

/** Answers the oldest request of this method and path that waits; waits until there is one. */
async function answer(asked: string, body: object, status = 200): Promise<void> {
  const place = () => held.findIndex((one) => one.path === asked);
  await vi.waitFor(() => expect(held.map((one) => one.path)).toContain(asked));
  const [one] = held.splice(place(), 1);
  one!.answer(body, status);
  await settled();
}

/** What answered requests cause has happened. */
const settled = () => new Promise((resolve) => setTimeout(resolve, 0));

const LIST = "GET /v1/conversations?limit=100";
const conversation = (id: string, response_id: string | null = null) => ({ id, title: id, updated_at: 1, metadata: {}, response_id });
const list = (...ids: string[]) => ({ data: ids.map((id) => conversation(id)), has_more: false });

function items(...texts: string[]): { data: Item[]; has_more: boolean } {
  const data = texts.map((text, place) => {
    const role = place % 2 ? "assistant" : "user";
    return { id: `msg_${place}`, type: "message", role, content: [{ text }], parent: place ? `msg_${place - 1}` : "root" };
  });
  return { data, has_more: false };
}

/** A user's chat with this conversation in its address. */
async function begun(id = ""): Promise<Chat> {
  const chat = new Chat(sessionStorage, true);
  const isThere = chat.begin(id);
  await answer("GET /v1/auth/session", { user_id: "u1", name: "ann", role: "user" });
  if (id) {
    await answer(`GET /v1/conversations/${id}`, conversation(id));
    await answer(`GET /v1/conversations/${id}/items?order=asc&limit=100`, items("hi", "Hello."));
  }
  await answer(LIST, list("conv_a", "conv_b"));
  await answer("GET /v1/models", { data: [{ id: "m", max_context_tokens: 8, capabilities: ["chat"], sampling: {}, asleep: false }] });
  await answer("GET /health", {});
  await isThere;
  return chat;
}

async function opened(id: string, ...texts: string[]): Promise<void> {
  await answer(`GET /v1/conversations/${id}`, conversation(id));
  await answer(`GET /v1/conversations/${id}/items?order=asc&limit=100`, items(...texts));
}

/** News of another tab. */
const hear = (chat: Chat, id: string) => chat.others.onmessage?.({ data: id } as MessageEvent<string>);
const texts = (chat: Chat) => path(chat.state.tree).map((one) => one.text);

beforeEach(() => {
  [held, sent] = [[], []];
  vi.stubGlobal("BroadcastChannel", Channel);
  vi.stubGlobal("fetch", (place: string, init: RequestInit = {}) => {
    const asked = `${init.method ?? "GET"} ${place}`;
    if (asked === "GET /health" && sent.includes(asked)) return Promise.resolve(new Response("{}")); // it is asked all the time
    sent.push(asked);
    return new Promise((resolve) => {
      const answer = (body: object, status = 200) => resolve(new Response(JSON.stringify(body), { status }));
      const stream = (...events: object[]) => resolve(new Response(events.map((each) => `data: ${JSON.stringify(each)}\n\n`).join("")));
      held.push({ path: asked, answer, stream });
    });
  });
});

afterEach(() => {
  vi.unstubAllGlobals();
  sessionStorage.clear();
  history.replaceState(null, "", "/");
});

test("what is known before the page is painted for the first time is shown", async () => {
  vi.stubGlobal("ResizeObserver", class { observe() {} disconnect() {} });
  vi.stubGlobal("matchMedia", () => ({ matches: false, addEventListener() {}, removeEventListener() {} }));
  const chat = new Chat(sessionStorage, false);
  const place = document.createElement("div");
  render(h(App, { chat }), place);
  chat.set({ models: [{ id: "m", max_context_tokens: 8192, capabilities: ["chat"], sampling: {}, asleep: false }], model: "m", notice: "Known." });
  await settled();
  expect(place.textContent).toContain("Known.");
  render(null, place);
});

test("the settings are there with the first rendering, not after it", () => {
  const shown = vi.fn();
  HTMLDialogElement.prototype.showModal = shown;
  const place = document.createElement("div");
  render(h(Settings, { chat: new Chat(sessionStorage, false), close: () => undefined }), place);
  expect(shown).toHaveBeenCalledOnce();
  render(null, place);
});

test("a list that comes after a later one is not shown", async () => {
  const chat = await begun();
  void chat.conversations.list();
  void chat.conversations.list();
  const [first, second] = held.splice(0);
  second!.answer(list("conv_b"));
  await settled();
  first!.answer(list("conv_a", "conv_b"));
  await settled();
  expect(chat.state.entries.map((one) => one.id)).toEqual(["conv_b"]);
});

test("a list that was on its way does not bring a deleted chat back", async () => {
  const chat = await begun();
  void chat.conversations.list();
  void chat.conversations.remove(chat.state.entries[0]!);
  await answer(LIST, list("conv_a", "conv_b"));
  expect(chat.state.entries.map((one) => one.id)).toEqual(["conv_b"]);
});

test("of two chosen conversations the later choice is shown", async () => {
  const chat = await begun();
  void chat.visit("conv_a");
  void chat.visit("conv_b");
  await opened("conv_b", "of b");
  await opened("conv_a", "of a");
  expect([chat.state.id, texts(chat), location.pathname]).toEqual(["conv_b", ["of b"], "/c/conv_b"]);
});

test("a new chat stays one when an earlier choice is loaded", async () => {
  const chat = await begun();
  void chat.visit("conv_a");
  chat.newChat();
  await opened("conv_a", "of a");
  expect([chat.state.id, texts(chat)]).toEqual(["", []]);
});

test("a conversation that can not be opened is told of, and the open one stays", async () => {
  const chat = await begun("conv_a");
  void chat.visit("conv_b");
  await answer("GET /v1/conversations/conv_b", {}, 404);
  expect([chat.state.id, chat.state.notice]).toEqual(["conv_a", "This is not there. It may have been deleted."]);
});

test("news of a conversation that is just being opened is not lost", async () => {
  const chat = new Chat(sessionStorage, true);
  void chat.begin("conv_a");
  await answer("GET /v1/auth/session", { user_id: "u1", name: "ann", role: "user" });
  hear(chat, "conv_a");
  await opened("conv_a", "hi", "Hello.");
  await answer(LIST, list("conv_a"));
  await answer(LIST, list("conv_a"));
  await opened("conv_a", "hi", "Hello.", "no", "Why?");
  expect(texts(chat)).toEqual(["hi", "Hello.", "no", "Why?"]);
});

test("what was read before this tab went on is read again", async () => {
  const chat = await begun("conv_a");
  hear(chat, "conv_a");
  await answer(LIST, list("conv_a"));
  await answer("GET /v1/conversations/conv_a", conversation("conv_a"));
  // While the items are on their way, a whole turn begins and ends here.
  const [late] = held.splice(0);
  void chat.ask("no");
  await vi.waitFor(() => expect(sent).toContain("POST /v1/responses"));
  const done = { type: "response.completed", response: { status: "completed", output: [{ id: "msg_3", type: "message", content: [{ text: "Why?" }] }] } };
  const turn = held.splice(0);
  expect(turn.map((one) => one.path)).toEqual(["POST /v1/responses"]);
  turn[0]!.stream(done);
  await vi.waitFor(() => expect(chat.state.writing).toBe(""));
  late!.answer(items("hi", "Hello."));
  await settled();
  expect(texts(chat)).toEqual(["hi", "Hello.", "no", "Why?"]);
  await opened("conv_a", "hi", "Hello.", "no", "Why?");
  expect(texts(chat)).toEqual(["hi", "Hello.", "no", "Why?"]);
});

test("an answer that ends before this tab follows it is there once", async () => {
  const chat = await begun("conv_a");
  hear(chat, "conv_a");
  await answer(LIST, list("conv_a"));
  await answer("GET /v1/conversations/conv_a", conversation("conv_a", "resp_1"));
  await answer("GET /v1/conversations/conv_a/items?order=asc&limit=100", items("hi", "Hello."));
  hear(chat, "conv_a"); // it has ended
  await answer(LIST, list("conv_a"));
  await opened("conv_a", "hi", "Hello.", "no", "Why?");
  await answer("GET /v1/responses/resp_1", { conversation: { parent: "msg_1" } });
  await answer("GET /v1/responses/resp_1/input_items?order=asc&limit=100", items("no"));
  await opened("conv_a", "hi", "Hello.", "no", "Why?");
  expect(texts(chat)).toEqual(["hi", "Hello.", "no", "Why?"]);
  expect(Object.keys(chat.state.tree.turns)).toHaveLength(4);
});

test("an answer that is stopped before the service has told its id is stopped when it does", async () => {
  const chat = await begun("conv_a");
  void chat.ask("no");
  await vi.waitFor(() => expect(sent).toContain("POST /v1/responses"));
  chat.stop();
  const [turn] = held.splice(held.findIndex((one) => one.path === "POST /v1/responses"), 1);
  turn!.stream({ type: "response.created", response: { id: "resp_1" } }, { type: "response.incomplete", response: { status: "cancelled" } });
  await vi.waitFor(() => expect(sent).toContain("POST /v1/responses/resp_1/cancel"));
});

test("a stopped answer is a stopped one when the service has more of it", async () => {
  const chat = await begun("conv_a");
  const [, one] = path(chat.state.tree);
  const stopped = { ...one!, status: "stopped" as const, text: "Hel" };
  chat.set({ tree: { ...chat.state.tree, turns: { ...chat.state.tree.turns, [one!.id]: stopped } } });
  hear(chat, "conv_a");
  await answer(LIST, list("conv_a"));
  await answer("GET /v1/conversations/conv_a", conversation("conv_a"));
  const found = items("hi", "Hello");
  found.data[1]!.status = "incomplete";
  await answer("GET /v1/conversations/conv_a/items?order=asc&limit=100", found);
  expect(path(chat.state.tree).map(({ text, status }) => [text, status])).toEqual([["hi", "done"], ["Hello", "stopped"]]);
});

test("a title and a pin that are changed at once are both kept", async () => {
  const chat = await begun();
  const [entry] = chat.state.entries;
  void chat.conversations.rename(entry!, "Greetings");
  void chat.conversations.pin(entry!);
  await settled();
  expect(held.map((one) => one.path)).toEqual(["GET /v1/conversations/conv_a"]);
});
