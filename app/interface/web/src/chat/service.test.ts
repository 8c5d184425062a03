import { afterEach, describe, expect, test, vi } from "vitest";

import { percent, waits } from "./answer";
import { type Piece, type Think, completed, responded, whenThere } from "./service";
import { PLAIN } from "./state";
import { type Turn, turn } from "./tree";

const NEWS = [
  { total: 200, cache: 0, processed: 0, time_ms: 0, queued_ahead: 2 },
  { total: 200, cache: 64, processed: 81, time_ms: 400, queued_ahead: null },
];
const PROGRESS = [
  { kind: "progress", progress: { ahead: 2, done: 0, total: 200 } },
  { kind: "progress", progress: { ahead: null, done: 81, total: 200 } },
];

/** Answers every call with these events, and records the requests. */
function serving(events: (object | string)[]): Record<string, unknown>[] {
  const asked: Record<string, unknown>[] = [];
  const data = events.map((each) => `data: ${typeof each === "string" ? each : JSON.stringify(each)}\n\n`).join("");
  vi.stubGlobal("fetch", (_: string, init: RequestInit) => {
    asked.push(JSON.parse(init.body as string) as Record<string, unknown>);
    return Promise.resolve(new Response(data));
  });
  return asked;
}

async function all(pieces: AsyncGenerator<Piece>): Promise<Piece[]> {
  const found: Piece[] = [];
  for await (const piece of pieces) found.push(piece);
  return found;
}

afterEach(() => vi.unstubAllGlobals());

const END = { kind: "end", cut: null, isStopped: false };
const said = (content: string) => ({ role: "user", content }) as const;
const ASKED = { model: "m", knobs: PLAIN, seed: 1, shortTokens: null };
const there = () => Promise.resolve();

describe("what comes before the first word", () => {
  const { signal } = new AbortController();

  test("is asked for and told in a chat", async () => {
    const nothing = [{ index: 0, delta: {}, finish_reason: null }];
    const asked = serving([
      ...NEWS.map((prompt_progress) => ({ choices: nothing, prompt_progress })),
      { choices: [{ index: 0, delta: { content: "Hi" }, finish_reason: "stop" }] },
      "[DONE]",
    ]);
    const pieces = await all(completed(ASKED, [{ role: "user", content: "Hello" }], signal));
    expect(pieces).toEqual([{ kind: "admitted" }, ...PROGRESS, { kind: "text", text: "Hi" }, END]);
    expect(asked[0]?.return_progress).toBe(true);
  });

  test("is asked for and told in a stored conversation", async () => {
    const asked = serving([
      { type: "response.created", response: { status: "queued" } },
      ...NEWS.map((prompt_progress) => ({ type: "response.prompt_progress", prompt_progress })),
      { type: "response.output_text.delta", delta: "Hi" },
      { type: "response.completed", response: { status: "completed" } },
    ]);
    const pieces = await all(responded(ASKED, { id: "conv_1", parent: "root" }, said("Hello"), signal));
    expect(pieces).toEqual([{ kind: "admitted" }, ...PROGRESS, { kind: "text", text: "Hi" }, END]);
    expect(asked[0]).toMatchObject({ return_progress: true, on_overflow: "shift" });
  });

  test("is a thought where the model thinks, in a chat", async () => {
    const delta = (values: object, finish_reason: string | null = null) => ({ choices: [{ index: 0, delta: values, finish_reason }] });
    serving([delta({ role: "assistant", content: "" }), delta({ reasoning_content: "h" }), delta({ reasoning_content: "m" }), delta({ content: "Hi" }, "stop"), "[DONE]"]);
    const pieces = await all(completed(ASKED, [{ role: "user", content: "Hello" }], signal));
    const thoughts = [{ kind: "thought", text: "h" }, { kind: "thought", text: "m" }];
    expect(pieces).toEqual([{ kind: "admitted" }, ...thoughts, { kind: "text", text: "Hi" }, END]);
  });

  test("is a thought where the model thinks, in a stored conversation", async () => {
    const output = [
      { id: "rs_1", type: "reasoning", content: [{ type: "reasoning_text", text: "hm" }] },
      { id: "msg_1", type: "message", content: [{ text: "Hi" }] },
    ];
    serving([
      { type: "response.output_item.added", item: { id: "rs_1", type: "reasoning" } },
      { type: "response.reasoning_text.delta", delta: "hm" },
      { type: "response.output_item.added", item: { id: "msg_1", type: "message" } },
      { type: "response.output_text.delta", delta: "Hi" },
      { type: "response.completed", response: { status: "completed", output } },
    ]);
    const pieces = await all(responded(ASKED, { id: "conv_1", parent: "root" }, said("Hello"), signal));
    const item = { kind: "item", id: "msg_1" };
    expect(pieces).toEqual([
      { kind: "admitted" }, { kind: "thought", text: "hm" }, item, { kind: "text", text: "Hi" }, item,
      { kind: "whole", text: "Hi", thought: "hm" }, END,
    ]);
  });

  test("is how much the model is to think, and that a chat may be longer than the context", async () => {
    const asked = serving(["[DONE]"]);
    const ask = async (think: Think | null, shortTokens: number | null) => {
      await all(completed({ ...ASKED, knobs: { ...PLAIN, think }, shortTokens }, [], signal));
      const { enable_thinking, thinking_budget, on_overflow } = asked.at(-1)!;
      return [enable_thinking, thinking_budget, on_overflow];
    };
    expect(await ask(null, 128)).toEqual([undefined, undefined, "shift"]);
    expect(await ask("off", 128)).toEqual([false, undefined, "shift"]);
    expect(await ask("short", 128)).toEqual([true, 128, "shift"]);
    expect(await ask("full", 128)).toEqual([true, -1, "shift"]);
    expect(await ask("off", null)).toEqual([undefined, undefined, "shift"]); // of another model, which does not think
  });

  test("and by what the answer was cut comes at its end", async () => {
    const context = { left_out_turns: 3, limit_tokens: 3072, full: true };
    const told = { kind: "context", context: { leftOut: 3, limitTokens: 3072 } };
    serving([
      { choices: [{ delta: { reasoning_content: "hm" } }] }, { choices: [{ delta: { reasoning_cut: "budget" } }] },
      { choices: [{ delta: { content: "Hi" }, finish_reason: "length" }] }, { choices: [], context }, "[DONE]",
    ]);
    const pieces = await all(completed(ASKED, [], signal));
    expect(pieces.slice(2)).toEqual([{ kind: "thoughtCut" }, { kind: "text", text: "Hi" }, told, { kind: "end", cut: "context", isStopped: false }]);
    const response = { status: "incomplete", incomplete_details: { reason: "max_output_tokens" }, context, output: [{ id: "rs_1", type: "reasoning", cut: "budget" }] };
    serving([{ type: "response.incomplete", response }]);
    const stored = await all(responded(ASKED, { id: "conv_1", parent: "root" }, said("Hi"), signal));
    expect(stored.slice(1)).toEqual([{ kind: "thoughtCut" }, told, { kind: "end", cut: "context", isStopped: false }]);
  });

  test("is put into words", () => {
    expect(waits(turn({ id: "a", parent: "q", role: "assistant" }), false)).toBe("Waiting for the service");
    const one = (values: Partial<Turn>) => turn({ id: "a", parent: "q", role: "assistant", status: "reading", ...values });
    expect(waits(one({ status: "waiting" }))).toBe("Waiting for a place");
    expect(waits(one({}))).toBe("Reading the prompt");
    expect(waits(one({ progress: { ahead: 2, done: 0, total: 9 } }))).toBe("Queued, 2 ahead");
    expect(waits(one({ progress: { ahead: 0, done: 0, total: 9 } }))).toBe("Queued, next in line");
    expect(waits(one({ progress: { ahead: null, done: 4, total: 9 } }))).toBe("Reading the prompt");
    expect(percent({ ahead: null, done: 81, total: 200 })).toBe(40);
    expect(percent({ ahead: null, done: 200, total: 200 })).toBe(100);
  });
});

describe("an answer that the service keeps", () => {
  const place = { id: "conv_1", parent: "root" };
  const event = (sequence_number: number, values: object) => ({ sequence_number, ...values });
  const created = event(0, { type: "response.created", response: { id: "resp_1", status: "queued" } });
  const word = (number: number, delta: string) => event(number, { type: "response.output_text.delta", delta });
  const output = [{ id: "msg_1", type: "message", content: [{ text: "Hello" }] }];

  test("is taken up again where the connection broke off", async () => {
    const addresses: string[] = [];
    const parts = [
      [created, word(1, "Hel")],
      "away",
      [word(2, "lo"), event(3, { type: "response.completed", response: { id: "resp_1", status: "completed", output } })],
    ];
    vi.useFakeTimers({ shouldAdvanceTime: true, advanceTimeDelta: 500 });
    vi.stubGlobal("fetch", async (address: string) => {
      addresses.push(address);
      const part = parts.shift();
      if (!Array.isArray(part)) throw new TypeError("away");
      return new Response(part.map((data) => `data: ${JSON.stringify(data)}\n\n`).join(""));
    });
    const pieces = await all(responded(ASKED, place, said("Hi"), new AbortController().signal));
    vi.useRealTimers();
    expect(pieces.map((one) => one.kind)).toEqual(["admitted", "response", "text", "lost", "admitted", "text", "item", "whole", "end"]);
    expect(pieces.find((one) => one.kind === "whole")).toEqual({ kind: "whole", text: "Hello", thought: "" });
    const rest = "/v1/responses/resp_1?stream=true&starting_after=1";
    expect(addresses).toEqual(["/v1/responses", rest, rest]);
  });

  test("comes after a search in a collection, whose passages it cites", async () => {
    const results = [{ filename: "a.pdf", page: 3, text: "The rent is 900." }];
    const events = [
      created,
      event(1, { type: "response.output_item.done", item: { id: "fs", type: "file_search_call", results } }),
      event(2, { type: "response.completed", response: { id: "resp_1", status: "completed", output: [{ id: "fs", type: "file_search_call", results }] } }),
    ];
    const bodies: Record<string, unknown>[] = [];
    vi.stubGlobal("fetch", async (_: string, init: RequestInit) => {
      bodies.push(JSON.parse(init.body as string) as Record<string, unknown>);
      return new Response(events.map((data) => `data: ${JSON.stringify(data)}\n\n`).join(""));
    });
    const chosen = { ...ASKED, knobs: { ...ASKED.knobs, collection: "vs_1" } };
    const pieces = await all(responded(chosen, place, said("Hi"), new AbortController().signal));
    const sources = { kind: "sources", sources: [{ name: "a.pdf", page: 3, text: "The rent is 900." }] };
    expect(pieces.slice(2)).toEqual([sources, sources, { kind: "end", cut: null, isStopped: false }]);
    expect(bodies[0]!.tools).toEqual([{ type: "file_search", vector_store_ids: ["vs_1"] }]);
  });

  test("is asked for again while no worker is up", async () => {
    const away = new Response(JSON.stringify({ error: { message: "No worker is up." } }), { status: 503 });
    const end = event(1, { type: "response.completed", response: { id: "resp_1", status: "completed" } });
    const parts = [away, new Response([created, end].map((data) => `data: ${JSON.stringify(data)}\n\n`).join(""))];
    vi.stubGlobal("fetch", async () => parts.shift());
    const { signal } = new AbortController();
    const pieces = await all(whenThere((given) => responded(ASKED, place, said("Hi"), given), signal, there));
    expect(pieces.map((one) => one.kind)).toEqual(["lost", "admitted", "response", "end"]);
  });

  test("is no item of the conversation where it has failed without a word", async () => {
    const failed = event(1, { type: "response.failed", response: { id: "resp_1", status: "failed", output: [], error: { message: "Gone." } } });
    vi.stubGlobal("fetch", async () => new Response([created, failed].map((data) => `data: ${JSON.stringify(data)}\n\n`).join("")));
    const pieces = responded(ASKED, place, said("Hi"), new AbortController().signal);
    const kinds: unknown[] = [];
    await expect((async () => { for await (const one of pieces) kinds.push(one); })()).rejects.toThrow("Gone.");
    expect(kinds.at(-1)).toEqual({ kind: "item", id: "" });
  });

  test("that the service has lost is told so", async () => {
    const parts = [new Response(`data: ${JSON.stringify(created)}\n\n`), new Response("{}", { status: 404 })];
    vi.stubGlobal("fetch", async () => parts.shift());
    await expect(all(responded(ASKED, place, said("Hi"), new AbortController().signal))).rejects.toThrow(/It may have been deleted/);
  });
});
