// @vitest-environment jsdom
// Sessions of a hundred actions each, with faults among them, after which nothing that was typed is lost, and nothing was asked
// twice.
import { afterEach, beforeEach, expect, test, vi } from "vitest";

import { Chat } from "./chat";
import { path } from "./tree";

const ACTIONS = 100;
const ANSWER = ["Hel", "lo."];

class Channel {
  onmessage: ((event: MessageEvent<string>) => void) | null = null;
  postMessage(): void {}
  close(): void {}
}

interface Item {
  id: string;
  type: string;
  role: string;
  content: string;
  parent: string;
  status: string;
}

interface Answered {
  conversation: string;
  parent: string;
  question: string;
  events: object[];
  isOpen: boolean;
  tell: () => void;
}

type Fault = "none" | "refused" | "away" | "lost before" | "lost after" | "slow";

/** As much of the service as the chat asks for. */
class Service {
  fault: Fault = "none";
  asked: string[] = [];
  readonly conversations = new Map<string, { metadata: Record<string, string>; items: Item[]; responseId: string | null }>();
  private readonly answers = new Map<string, Answered>();
  private count = 0;

  fetch = async (place: string, init: RequestInit = {}): Promise<Response> => {
    if (this.fault === "away") throw new TypeError("away");
    const [address = "", query = ""] = place.split("?");
    const method = init.method ?? "GET";
    const body = init.body ? (JSON.parse(init.body as string) as Record<string, unknown>) : {};
    const parts = address.split("/").slice(2);
    if (address === "/health") return json({});
    if (address === "/v1/auth/session") return json({ user_id: "u1", name: "ann", role: "user" });
    if (address === "/v1/memory") return failed(404);
    if (address === "/v1/models") return json({ data: [{ id: "m", max_context_tokens: 8192, capabilities: ["chat"], sampling: {}, asleep: false }] });
    if (address === "/v1/chat/completions") return this.completed((body.messages as { content: string }[]).at(-1)!.content, init.signal);
    if (parts[0] === "conversations") return this.stored(method, parts[1], parts[2], body);
    if (address === "/v1/responses") return this.begun(body);
    const answer = this.answers.get(parts[1] ?? "");
    if (answer === undefined) return failed(404);
    if (parts[2] === "cancel") return this.ended(parts[1]!, true), json({});
    if (parts[2] === "input_items") return json({ data: [{ id: "x", type: "message", role: "user", content: answer.question }], has_more: false });
    if (!query) return json({ conversation: { parent: answer.parent } });
    return this.streamed(answer, Number(new URLSearchParams(query).get("starting_after")) + 1);
  };

  private stored(method: string, id: string | undefined, kind: string | undefined, body: Record<string, unknown>): Response {
    if (id === undefined && method === "POST") {
      const made = `conv_${(this.count += 1)}`;
      this.conversations.set(made, { metadata: body.metadata as Record<string, string>, items: [], responseId: null });
      return json(this.shown(made));
    }
    if (id === undefined) return json({ data: [...this.conversations.keys()].reverse().map((each) => this.shown(each)), has_more: false });
    const one = this.conversations.get(id);
    if (one === undefined) return failed(404);
    if (method === "DELETE") return this.conversations.delete(id), json({});
    if (kind === "items" && method === "GET") return json({ data: one.items, has_more: false });
    if (one.responseId !== null && kind === "items") return failed(409, "conversation_conflict");
    if (kind === "items") {
      let parent = body.parent as string;
      const added = (body.items as Item[]).map((item) => {
        const made = { ...item, id: `i${(this.count += 1)}`, status: "completed", parent };
        parent = made.id;
        return made;
      });
      one.items.push(...added);
      return json({ data: added, has_more: false });
    }
    if (method === "POST") one.metadata = body.metadata as Record<string, string>;
    return json(this.shown(id));
  }

  private shown(id: string): object {
    const { metadata, items, responseId } = this.conversations.get(id)!;
    const title = metadata.title ?? items[0]?.content ?? "";
    return { id, title, metadata, items: items.length, updated_at: 1, response_id: responseId };
  }

  private begun(body: Record<string, unknown>): Response {
    const { id, parent } = body.conversation as { id: string; parent: string };
    const one = this.conversations.get(id);
    if (one === undefined) return failed(404);
    if (this.fault === "refused") return failed(429, "rate_limit_exceeded");
    if (this.fault === "lost before") return this.lost();
    if (one.responseId !== null) return failed(409, "conversation_conflict");
    const question = body.input as string;
    this.asked.push(question);
    const responseId = `resp_${(this.count += 1)}`;
    const made: Item = { id: `i${(this.count += 1)}`, type: "message", role: "user", content: question, parent, status: "completed" };
    one.items.push(made);
    one.responseId = responseId;
    const answer: Answered = { conversation: id, parent, question, events: [], isOpen: true, tell: () => {} };
    this.answers.set(responseId, answer);
    answer.events.push({ type: "response.created", response: { id: responseId } });
    answer.events.push({ type: "response.output_item.added", item: { id: `a${made.id}`, type: "message" } });
    answer.events.push({ type: "response.output_text.delta", delta: ANSWER[0] });
    if (this.fault !== "slow") this.ended(responseId, false);
    if (this.fault === "lost after") return this.lost();
    return this.streamed(answer, 0);
  }

  /** The connection breaks, once. */
  private lost(): never {
    this.fault = "none";
    throw new TypeError("lost");
  }

  private ended(responseId: string, isCancelled: boolean): void {
    const answer = this.answers.get(responseId)!;
    const one = this.conversations.get(answer.conversation);
    if (!answer.isOpen) return;
    const question = one?.items.at(-1)?.id ?? "";
    const text = isCancelled ? ANSWER[0]! : ANSWER.join("");
    const status = isCancelled ? "incomplete" : "completed";
    one?.items.push({ id: `a${question}`, type: "message", role: "assistant", content: text, parent: question, status });
    if (one) one.responseId = null;
    if (!isCancelled) answer.events.push({ type: "response.output_text.delta", delta: ANSWER[1] });
    const output = [{ id: `a${question}`, type: "message", content: [{ text }] }];
    answer.events.push({ type: `response.${status}`, response: { status: isCancelled ? "cancelled" : "completed", output } });
    answer.isOpen = false;
    answer.tell();
  }

  private streamed(answer: Answered, from: number): Response {
    const write = (control: ReadableStreamDefaultController<Uint8Array>, at: number) => {
      answer.events.forEach((event, place) => place >= at && control.enqueue(data({ sequence_number: place, ...event })));
      if (!answer.isOpen) control.close();
    };
    return new Response(new ReadableStream({
      start(control) {
        const told = answer.events.length;
        write(control, from);
        answer.tell = () => write(control, told);
      },
    }));
  }

  private completed(question: string, signal: AbortSignal | null | undefined): Response {
    if (this.fault === "refused") return failed(429, "rate_limit_exceeded");
    if (this.fault === "lost before" || this.fault === "lost after") return this.lost();
    this.asked.push(question);
    const isSlow = this.fault === "slow";
    const delta = (content: string, finish_reason: string | null = null) => data({ choices: [{ delta: { content }, finish_reason }] });
    return new Response(new ReadableStream({
      start(control) {
        control.enqueue(delta(ANSWER[0]!));
        signal?.addEventListener("abort", () => isSlow && control.error(new DOMException("aborted", "AbortError")));
        if (isSlow) return;
        control.enqueue(delta(ANSWER[1]!, "stop"));
        control.enqueue(new TextEncoder().encode("data: [DONE]\n\n"));
        control.close();
      },
    }));
  }
}

const data = (event: object) => new TextEncoder().encode(`data: ${JSON.stringify(event)}\n\n`);
const json = (body: object) => new Response(JSON.stringify(body));
const failed = (status: number, code: string | null = null) => new Response(JSON.stringify({ error: { message: "No.", code } }), { status });

/** Numbers that seem random, the same for the same seed. */
function random(seed: number): (most: number) => number {
  let state = seed;
  return (most) => {
    state = (Math.imul(state, 1664525) + 1013904223) >>> 0;
    return Math.floor((state / 2 ** 32) * most);
  };
}

let service: Service;
let chats: Chat[] = [];

async function opened(isUser: boolean): Promise<Chat> {
  const last = chats.at(-1);
  if (last) {
    last.flush(true);
    last.writing.running?.abort.abort();
    last.writing.running = null;
    last.isOver = true; // its page has gone
  }
  const chat = new Chat(sessionStorage, isUser);
  chats.push(chat);
  void chat.begin(/^\/c\/(\w+)$/.exec(location.pathname)?.[1] ?? "");
  await vi.advanceTimersByTimeAsync(3000);
  return chat;
}

beforeEach(() => {
  vi.useFakeTimers();
  service = new Service();
  chats = [];
  vi.stubGlobal("BroadcastChannel", Channel);
  vi.stubGlobal("fetch", service.fetch);
});

afterEach(() => {
  vi.clearAllTimers();
  vi.useRealTimers();
  vi.unstubAllGlobals();
  sessionStorage.clear();
  localStorage.clear();
  history.replaceState(null, "", "/");
});

const FAULTS: Fault[] = ["none", "none", "refused", "away", "lost before", "lost after", "slow"];

test.each([1, 2, 3, 4, 5, 6].flatMap((seed) => [[seed, true], [seed, false]] as const))(
  "session %d of a user (%s)",
  async (seed, isUser) => {
    const next = random(seed);
    const done: string[] = [];
    const typed: string[] = [];
    const again: string[] = [];
    let chat = await opened(isUser);
    const type = () => {
      typed.push(`text${typed.length}.`);
      return typed.at(-1)!;
    };
    for (let count = 0; count < ACTIONS; count += 1) {
      const turns = path(chat.state.tree);
      const action = next(12);
      done.push(`${action} ${service.fault}`);
      if (action < 4) {
        chat.draft(`${chat.state.draft}${type()}`);
        void chat.ask(chat.state.draft);
      } else if (action === 4) chat.draft(`${chat.state.draft}${type()}`);
      else if (action === 5) chat.stop();
      else if (action === 6) chat.newChat();
      else if (action === 7 && chat.state.entries.length) void chat.visit(chat.state.entries[next(chat.state.entries.length)]!.id);
      else if (action === 8 && !chat.state.writing && turns.length) void chat.edit(turns[2 * next(Math.ceil(turns.length / 2))]!.id, type());
      else if (action === 9) {
        if (chat.state.refused) void chat.again();
        else if (turns.at(-1)?.role === "assistant" && !chat.state.writing) {
          if (next(2)) void chat.goOn(turns.at(-1)!.id);
          else {
            again.push(turns.at(-2)!.text);
            void chat.retry(turns.at(-1)!.id);
          }
        }
      } else if (action === 10) {
        service.fault = "none"; // a page that is loaded needs the service
        chat = await opened(isUser);
      }
      if (action === 11 || service.fault === "slow") service.fault = FAULTS[next(FAULTS.length)]!;
      await vi.advanceTimersByTimeAsync(next(3) ? next(800) : 5000);
    }
    service.fault = "none";
    chat.stop();
    await vi.advanceTimersByTimeAsync(20_000);
    const trees = await Promise.all(chat.state.entries.map(({ id }) => chat.shelf.open(id)));
    const said = [...trees, chat.state.tree].flatMap((tree) => Object.values(tree.turns).map((one) => one.text));
    const found = [...said, chat.state.draft].join("\n");
    expect([typed.filter((text) => !found.includes(text)), done]).toEqual([[], done]);
    const of = (texts: string[], text: string) => texts.filter((each) => each === text).length;
    expect(service.asked.filter((text) => isUser && text.startsWith("text") && of(service.asked, text) > 1 + of(again, text))).toEqual([]);
    if (isUser) for (const { items } of service.conversations.values()) expect(items.length, "no chat without content").toBeGreaterThan(0);
  },
);
