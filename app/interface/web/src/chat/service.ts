// The chat's calls to /v1: models, health, streamed answers. Knows no page.
import { AnswerFailure, ask, send, worded } from "./calls";
import { eventsOf } from "./events";
import { type Passage, chatContent, itemContent, sourcesOf } from "./files";
import type { Context, Cut, Progress, Said, Source, Usage } from "./tree";

export { AnswerFailure, ask, isLoggedOut, onOver, send, useKey } from "./calls";

export interface Model {
  id: string;
  max_context_tokens: number;
  capabilities: string[];
  /** The model's sampling defaults; null: unknown. */
  sampling: { temperature?: number | null; top_p?: number | null };
  /** Whether its next request wakes it, which takes a moment. */
  asleep: boolean;
  /** What can be said to it of thinking; null or absent: nothing. */
  thinking?: Thinking | null;
}

export interface Thinking {
  /** Whether it can be told not to think. */
  switch: boolean;
  /** The most tokens of a short thought. */
  short_tokens: number;
  /** What holds where nothing is said. */
  default: Think;
}

export type Think = "off" | "short" | "full";

export interface Knobs {
  system: string;
  temperature: number | null;
  topP: number | null;
  maxTokens: number | null;
  seed: number | null;
  /** Null: the model's own. */
  think: Think | null;
  /** The collection from which answers are made; empty: none. */
  collection: string;
}

/** Callbacks of an answer. */
export type Piece =
  | { kind: "admitted" }
  | { kind: "progress"; progress: Progress }
  | { kind: "thought"; text: string }
  | { kind: "text"; text: string }
  /** The whole thought and text, replacing what came before. */
  | { kind: "whole"; text: string; thought: string }
  /** The service's ids of the answer and of its item; empty: none. */
  | { kind: "response"; id: string }
  | { kind: "item"; id: string }
  /** The connection broke off and is being resumed. */
  | { kind: "lost" }
  | { kind: "end"; cut: Cut | null; isStopped: boolean }
  | { kind: "context"; context: Context }
  /** What was found in collections for the answer. */
  | { kind: "sources"; sources: Source[] }
  /** The thought reached its limit, and the answer follows. */
  | { kind: "thoughtCut" }
  | { kind: "usage"; usage: Usage };

/** Whether it has a chat template. */
export const canChat = (model: Model): boolean => model.capabilities.includes("chat");

/** Whether the model of that name is known to have no chat template. */
export const isMute = (models: Model[], name: string): boolean => models.some((one) => one.id === name && !canChat(one));

/** A collection of documents, of the user or shared with the user. */
export interface Collection {
  id: string;
  name: string;
  file_counts: { in_progress: number };
}

/** The user's collections; none where the service has no such thing. */
export async function collections(): Promise<Collection[]> {
  return (await ask<{ data: Collection[] }>("GET", "/v1/vector_stores?limit=100").catch(() => ({ data: [] }))).data;
}

/** A question about the service that hangs longer is asked again. */
const LOOK_TIMEOUT_MS = 5000;

export async function models(): Promise<Model[]> {
  return (await ask<{ data: Model[] }>("GET", "/v1/models", undefined, AbortSignal.timeout(LOOK_TIMEOUT_MS))).data;
}

/** Whether a worker can take a request now. */
export async function isHealthy(): Promise<boolean> {
  try {
    return (await fetch("/health", { cache: "no-store", signal: AbortSignal.timeout(LOOK_TIMEOUT_MS) })).ok;
  } catch {
    return false;
  }
}

/** Who answers and how. */
export interface Asked {
  model: string;
  knobs: Knobs;
  seed: number;
  /** The tokens of the model's short thought; null: it has no switch. */
  shortTokens: number | null;
}

/** A chat never ends: where it is longer than the context its oldest turns are left out. */
const ENDLESS = { on_overflow: "shift" };

function settings({ model, knobs, seed, shortTokens }: Asked): Record<string, unknown> {
  const set: Record<string, unknown> = { model, stream: true, return_progress: true, seed, ...ENDLESS };
  if (knobs.temperature !== null) set.temperature = knobs.temperature;
  if (knobs.topP !== null) set.top_p = knobs.topP;
  if (knobs.think !== null && shortTokens !== null) {
    set.enable_thinking = knobs.think !== "off";
    if (knobs.think !== "off") set.thinking_budget = knobs.think === "short" ? shortTokens : -1;
  }
  return set;
}

export interface WireContext {
  left_out_turns: number;
  limit_tokens: number;
  full?: boolean;
}

export const contextOf = (wire: WireContext): Context => ({ leftOut: wire.left_out_turns, limitTokens: wire.limit_tokens });

interface WireUsage {
  prompt_tokens: number;
  completion_tokens: number;
  prompt_tokens_details?: { cached_tokens?: number } | null;
}

interface WireProgress {
  total: number;
  processed: number;
  queued_ahead: number | null;
}

interface Delta {
  content?: string | null;
  reasoning_content?: string | null;
  reasoning_cut?: "budget" | "length";
}

interface Chunk {
  choices?: { delta?: Delta; finish_reason?: string | null }[];
  usage?: WireUsage | null;
  context?: WireContext | null;
  prompt_progress?: WireProgress;
  error?: { message?: string; code?: string | null };
}

/** Generates an answer by /v1/chat/completions from the client's history: the service stores nothing. Throws AnswerFailure. */
export async function* completed(asked: Asked, said: Said[], signal: AbortSignal): AsyncGenerator<Piece> {
  const { knobs } = asked;
  const system: Said[] = knobs.system.trim() ? [{ role: "system", content: knobs.system }] : [];
  const body = {
    ...settings(asked), messages: [...system, ...said].map((one) => ({ role: one.role, content: chatContent(one) })), stream_options: { include_usage: true },
    ...(knobs.maxTokens === null ? {} : { max_completion_tokens: knobs.maxTokens }),
  };
  const response = await send("POST", "/v1/chat/completions", body, signal);
  const requestId = response.headers.get("x-request-id") ?? "";
  yield { kind: "admitted" };
  let [isWhole, isFull, isCut] = [false, false, false];
  for await (const data of events(response, signal)) {
    if (data === "[DONE]") {
      isWhole = true;
      continue;
    }
    const chunk = JSON.parse(data) as Chunk;
    if (chunk.error) throw new AnswerFailure(worded(chunk.error, 200).message, 200, chunk.error.code ?? null, requestId);
    if (chunk.prompt_progress) yield progressOf(chunk.prompt_progress);
    const choice = chunk.choices?.[0];
    const thought = choice?.delta?.reasoning_content ?? "";
    const text = choice?.delta?.content ?? "";
    if (thought) yield { kind: "thought", text: thought };
    if (choice?.delta?.reasoning_cut === "budget") yield { kind: "thoughtCut" };
    if (text) yield { kind: "text", text };
    if (choice?.finish_reason) isCut = choice.finish_reason === "length";
    if (chunk.context) {
      isFull = chunk.context.full ?? false;
      yield { kind: "context", context: contextOf(chunk.context) };
    }
    if (chunk.usage) {
      const { prompt_tokens, completion_tokens, prompt_tokens_details } = chunk.usage;
      const rememberedTokens = prompt_tokens_details?.cached_tokens ?? 0;
      yield { kind: "usage", usage: { promptTokens: prompt_tokens, answerTokens: completion_tokens, rememberedTokens } };
    }
  }
  if (!isWhole) throw broken(requestId);
  yield { kind: "end", cut: isCut ? (isFull ? "context" : "length") : null, isStopped: false };
}

interface ResponseBody {
  id?: string;
  status?: string;
  error?: { message?: string; code?: string } | null;
  incomplete_details?: { reason?: string } | null;
  output?: { id: string; type: string; content?: { text?: string }[]; results?: Passage[] | null; cut?: "budget" | "max_output_tokens" }[];
  context?: WireContext | null;
  usage?: WireResponseUsage | null;
}

export interface WireResponseUsage {
  input_tokens: number;
  output_tokens: number;
  input_tokens_details?: { cached_tokens?: number } | null;
}

export const usageOf = ({ input_tokens, output_tokens, input_tokens_details }: WireResponseUsage): Usage => (
  { promptTokens: input_tokens, answerTokens: output_tokens, rememberedTokens: input_tokens_details?.cached_tokens ?? 0 });

interface ResponseEvent {
  type: string;
  sequence_number?: number;
  delta?: string;
  item?: { id: string; type: string; results?: Passage[] | null };
  prompt_progress?: WireProgress;
  response?: ResponseBody;
  error?: { message?: string; code?: string };
}

/** How long the service may take to restart before an answer counts as lost. */
const LOST_AFTER_MS = 120_000;
const COME_BACK_MS = 1000;

/**
 * Answers the next question of a stored conversation, by /v1/responses. The answer continues without listeners; a broken
 * connection is resumed. Throws AnswerFailure.
 */
export async function* responded(
  asked: Asked, conversation: { id: string; parent: string }, question: Said, signal: AbortSignal,
): AsyncGenerator<Piece> {
  const { knobs } = asked;
  const content = itemContent(question);
  const body = {
    ...settings(asked), conversation, background: true,
    input: typeof content === "string" ? content : [{ type: "message", role: "user", content }],
    ...(knobs.system.trim() ? { instructions: knobs.system } : {}),
    ...(knobs.maxTokens === null ? {} : { max_output_tokens: knobs.maxTokens }),
    ...(knobs.collection ? { tools: [{ type: "file_search", vector_store_ids: [knobs.collection] }] } : {}),
  };
  const response = await send("POST", "/v1/responses", body, signal);
  yield { kind: "admitted" };
  yield* followed("", response, signal);
}

/** Waits. Rejects when `signal` is aborted. */
export function pause(ms: number, signal: AbortSignal): Promise<void> {
  return new Promise((resolve, reject) => {
    signal.throwIfAborted();
    setTimeout(resolve, ms);
    signal.addEventListener("abort", () => reject(signal.reason as Error), { once: true });
  });
}

/** How often a request may break while the service is there, before that counts as a failure. */
const MOST_BROKEN = 5;

/**
 * Begins an answer when the service is there: a request that it did not take is sent again when it is back. `again`: what is
 * done then, since it may have taken the request before the connection broke.
 */
export async function* whenThere(
  begin: (signal: AbortSignal) => AsyncGenerator<Piece>,
  signal: AbortSignal,
  there: (signal: AbortSignal) => Promise<void>,
  again = begin,
): AsyncGenerator<Piece> {
  let untilMs = Date.now() + LOST_AFTER_MS;
  let broken = 0;
  for (let isFirst = true; ; isFirst = false) {
    let hasBegun = false;
    try {
      for await (const piece of (isFirst ? begin : again)(signal)) {
        hasBegun ||= piece.kind === "admitted";
        yield piece;
      }
      return;
    } catch (error) {
      const status = error instanceof AnswerFailure ? error.status : -1;
      const mayWait = status === 0 ? ++broken < MOST_BROKEN : status === 503 && Date.now() < untilMs;
      if (hasBegun || !mayWait) throw error;
    }
    yield { kind: "lost" };
    await pause(COME_BACK_MS, signal);
    const sinceMs = Date.now();
    await there(signal);
    const awayMs = Date.now() - sinceMs;
    untilMs += awayMs;
    if (awayMs > COME_BACK_MS) broken = 0;
  }
}

/** Follows a response that the service is generating, from its beginning. Throws AnswerFailure. */
export async function* resumed(responseId: string, signal: AbortSignal): AsyncGenerator<Piece> {
  yield { kind: "admitted" };
  yield* followed(responseId, await again(responseId, -1, signal), signal);
}

/** The item that a response's question follows in its conversation, or "root". */
export async function placeOf(responseId: string): Promise<string> {
  const { conversation } = await ask<{ conversation?: { parent?: string | null } | null }>("GET", responseAt(responseId));
  return conversation?.parent ?? "";
}

/** Ends a response with what it has. Another ingress may be generating it. */
export async function cancelled(responseId: string): Promise<void> {
  for (let attempt = 1; attempt <= 10; attempt += 1) {
    try {
      await ask("POST", `${responseAt(responseId)}/cancel`);
      return;
    } catch (error) {
      if (!(error instanceof AnswerFailure) || error.code !== "response_in_progress") throw error;
    }
  }
}

const responseAt = (id: string) => `/v1/responses/${encodeURIComponent(id)}`;

async function* followed(id: string, first: Response, signal: AbortSignal): AsyncGenerator<Piece> {
  let [responseId, response, seen] = [id, first, -1];
  for (;;) {
    const requestId = responseId || (response.headers.get("x-request-id") ?? "");
    try {
      for await (const data of events(response, signal)) {
        const event = JSON.parse(data) as ResponseEvent;
        seen = event.sequence_number ?? seen;
        if (event.type === "response.created" && event.response?.id) {
          responseId = event.response.id;
          yield { kind: "response", id: responseId };
          if (event.response.context) yield { kind: "context", context: contextOf(event.response.context) };
        }
        if (event.prompt_progress) yield progressOf(event.prompt_progress);
        if (event.type === "response.output_item.added" && event.item?.type === "message") yield { kind: "item", id: event.item.id };
        if (event.type === "response.output_item.done" && event.item?.results) yield { kind: "sources", sources: sourcesOf(event.item.results) };
        if (event.type === "response.reasoning_text.delta" && event.delta) yield { kind: "thought", text: event.delta };
        if (event.type === "response.output_text.delta" && event.delta) yield { kind: "text", text: event.delta };
        if (event.error || event.type === "response.failed") {
          const error = event.error ?? event.response?.error;
          yield { kind: "item", id: outputOf(event.response ?? {}, "message")?.id ?? "" };
          throw new AnswerFailure(worded(error, 200).message, 200, error?.code ?? null, requestId);
        }
        if (event.type === "response.completed" || event.type === "response.incomplete") {
          yield* endOf(event.response ?? {});
          return;
        }
      }
      throw broken(requestId);
    } catch (error) {
      const isBroken = error instanceof AnswerFailure && error.status === 0;
      if (!isBroken || signal.aborted || !responseId) throw error;
      yield { kind: "lost" };
      response = await again(responseId, seen, signal);
      yield { kind: "admitted" };
    }
  }
}

function progressOf(wire: WireProgress): Piece {
  return { kind: "progress", progress: { ahead: wire.queued_ahead, done: wire.processed, total: wire.total } };
}

const outputOf = (response: ResponseBody, type: string) => response.output?.find((one) => one.type === type);
const textOf = (item: { content?: { text?: string }[] } | undefined) => (item?.content ?? []).map((part) => part.text ?? "").join("");

function* endOf(response: ResponseBody): Generator<Piece> {
  const message = outputOf(response, "message");
  const [thought, text] = [textOf(outputOf(response, "reasoning")), textOf(message)];
  const found = outputOf(response, "file_search_call")?.results;
  if (message) yield { kind: "item", id: message.id };
  if (found) yield { kind: "sources", sources: sourcesOf(found) };
  if (text || thought) yield { kind: "whole", text, thought };
  if (outputOf(response, "reasoning")?.cut === "budget") yield { kind: "thoughtCut" };
  if (response.context) yield { kind: "context", context: contextOf(response.context) };
  const isCut = response.incomplete_details?.reason === "max_output_tokens";
  yield { kind: "end", cut: isCut ? (response.context?.full ? "context" : "length") : null, isStopped: response.status === "cancelled" };
  if (response.usage) yield { kind: "usage", usage: usageOf(response.usage) };
}

/** Yields the rest of a response's events, once the service is back. Throws AnswerFailure. */
async function again(responseId: string, seen: number, signal: AbortSignal): Promise<Response> {
  const untilMs = Date.now() + LOST_AFTER_MS;
  for (;;) {
    try {
      return await send("GET", `${responseAt(responseId)}?stream=true&starting_after=${seen}`, undefined, signal);
    } catch (error) {
      const { status, code } = error instanceof AnswerFailure ? error : { status: -1, code: "" };
      const isAway = status === 0 || status >= 500 || code === "response_in_progress";
      if (!isAway || Date.now() > untilMs) throw error;
    }
    await pause(COME_BACK_MS, signal);
  }
}

const broken = (requestId: string) => new AnswerFailure("The connection broke off before the answer's end.", 0, null, requestId);

async function* events(response: Response, signal: AbortSignal): AsyncGenerator<string> {
  if (response.body === null) return;
  try {
    yield* eventsOf(response.body);
  } catch (error) {
    if (signal.aborted) throw error;
    throw broken("");
  }
}
