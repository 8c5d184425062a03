// @vitest-environment jsdom
// A question that the service does not take is not lost, and none is asked twice.
import { afterEach, beforeEach, expect, test, vi } from "vitest";

import { Chat } from "./chat";
import { path } from "./tree";

class Channel {
  onmessage: ((event: MessageEvent<string>) => void) | null = null;
  postMessage(): void {}
  close(): void {}
}

type Answer = object | "away" | number;

let sent: { asked: string; body: Record<string, unknown> }[] = [];
/** What each request is answered with: the first, the second and so on, the last of them for good. */
let served: Record<string, Answer[]> = {};

const MODELS = { data: [{ id: "m", max_context_tokens: 8, capabilities: ["chat"], sampling: {}, asleep: false }] };
const conversation = (id: string, values = {}) => ({ id, title: id, updated_at: 1, metadata: {}, response_id: null, items: 2, ...values });
const events = (...all: object[]) => new Response(all.map((each) => `data: ${JSON.stringify(each)}\n\n`).join(""));
const posts = (place: string) => sent.filter((one) => one.asked === `POST ${place}`);
const bubbles = (chat: Chat) => path(chat.state.tree).map((one) => one.text);

async function begun(isUser = true): Promise<Chat> {
  const chat = new Chat(sessionStorage, isUser);
  await chat.begin("");
  return chat;
}

beforeEach(() => {
  vi.useFakeTimers({ shouldAdvanceTime: true, advanceTimeDelta: 100 });
  sent = [];
  served = {
    "GET /v1/auth/session": [{ user_id: "u1", name: "ann", role: "user" }],
    "GET /v1/models": [MODELS],
    "GET /health": [{}],
    "GET /v1/conversations?limit=100": [{ data: [], has_more: false }],
    "POST /v1/conversations": [conversation("conv_new", { items: 0 })],
    "DELETE /v1/conversations/conv_new": [{}],
  };
  vi.stubGlobal("BroadcastChannel", Channel);
  vi.stubGlobal("fetch", async (place: string, init: RequestInit = {}) => {
    const asked = `${init.method ?? "GET"} ${place}`;
    sent.push({ asked, body: init.body ? (JSON.parse(init.body as string) as Record<string, unknown>) : {} });
    const answers = served[asked] ?? [404];
    const answer = answers.length > 1 ? answers.shift()! : answers[0]!;
    if (answer === "away") throw new TypeError("away");
    if (answer instanceof Response) return answer.clone();
    if (typeof answer === "number") return new Response(JSON.stringify({ error: { message: "No.", code: null } }), { status: answer });
    return new Response(JSON.stringify(answer));
  });
});

afterEach(() => {
  vi.useRealTimers();
  vi.unstubAllGlobals();
  sessionStorage.clear();
  localStorage.clear();
  history.replaceState(null, "", "/");
});

test("a first question that is refused leaves no conversation, and is a draft again", async () => {
  const chat = await begun();
  served["POST /v1/responses"] = [429];
  await chat.ask("Hi");
  expect(sent.map((one) => one.asked)).toContain("DELETE /v1/conversations/conv_new");
  expect([chat.state.id, chat.state.draft, bubbles(chat), location.pathname]).toEqual(["", "Hi", [], "/"]);
  expect(chat.state.refused?.failure.message).toBe("The service is busy. Try again later.");
  expect(sessionStorage.getItem("redoubt.draft")).toBe("Hi");
});

test("a waiting question that is stopped is a draft again, before what was typed since", async () => {
  const chat = await begun(false);
  served["GET /v1/models"] = ["away"];
  served["GET /health"] = ["away"];
  chat.connection.lost();
  const asking = chat.ask("Hi");
  await vi.waitFor(() => expect(chat.state.writing).not.toBe(""));
  chat.draft("More");
  expect(sessionStorage.getItem("redoubt.draft")).toBe("Hi\n\nMore");
  chat.stop();
  await asking;
  expect([chat.state.draft, bubbles(chat), chat.state.refused, chat.state.writing]).toEqual(["Hi\n\nMore", [], null, ""]);
});

test("one is left for another chat with it in the box", async () => {
  const chat = await begun(false);
  served["GET /v1/models"] = ["away"];
  chat.connection.lost();
  void chat.ask("Hi");
  await vi.waitFor(() => expect(chat.state.writing).not.toBe(""));
  chat.newChat();
  expect([chat.state.draft, chat.state.writing]).toEqual(["Hi", ""]);
});

const DONE = { type: "response.completed", response: { status: "completed", output: [{ id: "msg_2", type: "message", content: [{ text: "Hello." }] }] } };

test("a question is sent again when the service is back, if it has not got it", async () => {
  const chat = await begun();
  served["POST /v1/responses"] = ["away", events({ type: "response.created", response: { id: "resp_1" } }, DONE)];
  served["GET /v1/conversations/conv_new"] = [conversation("conv_new", { items: 0 })];
  served["GET /v1/conversations/conv_new/items?order=asc&limit=100"] = [{ data: [], has_more: false }];
  await chat.ask("Hi");
  expect([bubbles(chat), chat.state.refused]).toEqual([["Hi", "Hello."], null]);
  expect(posts("/v1/responses")).toHaveLength(2);
  expect(posts("/v1/conversations")).toHaveLength(1);
});

test("a question that the service has got is not sent again: its answer is followed", async () => {
  const chat = await begun();
  served["POST /v1/responses"] = ["away"];
  served["GET /v1/conversations/conv_new"] = [conversation("conv_new", { response_id: "resp_1" })];
  served["GET /v1/responses/resp_1"] = [{ conversation: { parent: "root" } }];
  served["GET /v1/responses/resp_1/input_items?order=asc&limit=100"] = [{ data: [{ id: "q", type: "message", role: "user", content: "Hi" }], has_more: false }];
  served["GET /v1/responses/resp_1?stream=true&starting_after=-1"] = [events(DONE)];
  await chat.ask("Hi");
  expect(bubbles(chat)).toEqual(["Hi", "Hello."]);
  expect(posts("/v1/responses")).toHaveLength(1);
});

test("an answer that has ended meanwhile is shown", async () => {
  const chat = await begun();
  served["POST /v1/responses"] = ["away"];
  served["GET /v1/conversations/conv_new"] = [conversation("conv_new")];
  const data = [
    { id: "q", type: "message", role: "user", content: "Hi", parent: "root" }, { id: "a", type: "message", role: "assistant", content: "Hello." },
  ];
  served["GET /v1/conversations/conv_new/items?order=asc&limit=100"] = [{ data, has_more: false }];
  await chat.ask("Hi");
  expect(path(chat.state.tree).map(({ text, status }) => [text, status])).toEqual([["Hi", "done"], ["Hello.", "done"]]);
  expect(posts("/v1/responses")).toHaveLength(1);
});

test("of an import that fails nothing stays", async () => {
  const chat = await begun();
  served["POST /v1/conversations"] = [conversation("conv_1"), conversation("conv_2")];
  served["POST /v1/conversations/conv_1/items"] = [{ data: [{ id: "a" }], has_more: false }];
  served["POST /v1/conversations/conv_2/items"] = [429];
  for (const id of ["conv_1", "conv_2"]) served[`DELETE /v1/conversations/${id}`] = [{}];
  const said = (text: string) => ({ messages: [{ role: "user", content: text }] });
  const file = new File([JSON.stringify([said("One"), said("Two")])], "chats.json");
  file.text = async () => JSON.stringify([said("One"), said("Two")]);
  await chat.conversations.takeIn(file);
  const deleted = sent.map((one) => one.asked).filter((asked) => asked.startsWith("DELETE"));
  expect(deleted.sort()).toEqual(["DELETE /v1/conversations/conv_1", "DELETE /v1/conversations/conv_2"]);
  expect(chat.state.notice).toBe("Nothing was imported. The service is busy. Try again later.");
});

test("settings are kept with the chat, and belong to it alone", async () => {
  const chat = await begun();
  chat.change({ system: "Answer in French. ".repeat(60), temperature: 0.5, think: "off" });
  served["POST /v1/responses"] = [events({ type: "response.created", response: { id: "resp_1" } }, DONE)];
  await chat.ask("Hi");
  const { metadata } = posts("/v1/conversations")[0]!.body as { metadata: Record<string, string> };
  expect(Object.values(metadata).every((value) => value.length <= 512)).toBe(true);
  expect([metadata.thinking, metadata.model]).toEqual(["off", "m"]);
  served["GET /v1/conversations/conv_new"] = [conversation("conv_new", { metadata: { title: "T", ...metadata } })];
  served["GET /v1/conversations/conv_new/items?order=asc&limit=100"] = [{ data: [], has_more: false }];
  served["POST /v1/conversations/conv_new"] = [{}];
  chat.change({ system: "Short." });
  await vi.waitFor(() => expect(posts("/v1/conversations/conv_new")).toHaveLength(1));
  expect(posts("/v1/conversations/conv_new")[0]!.body.metadata).toEqual({
    title: "T", model: "m", thinking: "off", settings: '{"system":"Short.","temperature":0.5}',
  });
  chat.newChat();
  expect(chat.state.knobs.system).toContain("French");
  await chat.open("conv_new");
  expect(chat.state.knobs).toMatchObject({ temperature: 0.5, think: "off" });
});

test("the dot is false within two seconds of the service being away", async () => {
  const chat = await begun();
  served["GET /health"] = ["away"];
  served["GET /v1/models"] = ["away"];
  const sinceMs = Date.now();
  await vi.waitFor(() => expect(chat.state.isReachable).toBe(false), { timeout: 5000 });
  expect(Date.now() - sinceMs).toBeLessThanOrEqual(2000);
});

test.each([true, false])("a model is told not to think only if it can be (%s)", async (canBe) => {
  const thinking = { switch: canBe, short_tokens: 64, default: "full" };
  served["GET /v1/models"] = [{ data: [{ ...MODELS.data[0], thinking }] }];
  const answer = (finish_reason: string) => new Response(`data: ${JSON.stringify({ choices: [{ delta: { content: "One," }, finish_reason }] })}\n\ndata: [DONE]\n\n`);
  served["POST /v1/chat/completions"] = [answer("length"), answer("stop"), answer("stop")];
  const chat = await begun(false);
  chat.change({ think: "short" });
  await chat.ask("Count");
  await chat.goOn(path(chat.state.tree)[1]!.id); // it has thought already
  chat.change({ think: "off" });
  await chat.ask("More");
  const told = posts("/v1/chat/completions").map(({ body }) => [body.enable_thinking, body.thinking_budget]);
  const off = canBe ? [false, undefined] : [undefined, undefined];
  expect(told).toEqual([[true, 64], off, off]);
});
