// The chat's calls to /v1: models, health, streamed answers. Knows no page.
import { asUser, isOver } from "../common/session";
import { inWordsOf, settingOf } from "../common/words";
import { eventsOf } from "./events";
import type { Progress, Said, Usage } from "./tree";

export interface Model {
  id: string;
  max_context_tokens: number;
  capabilities: string[];
  /** The model's sampling defaults; null: unknown. */
  sampling: { temperature?: number | null; top_p?: number | null };
  /** Whether its next request wakes it, which takes a moment. */
  asleep: boolean;
}

export interface Knobs {
  system: string;
  temperature: number | null;
  topP: number | null;
  maxTokens: number | null;
  seed: number | null;
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
  | { kind: "end"; isCut: boolean; isStopped: boolean }
  | { kind: "usage"; usage: Usage };

/** A failure with its id in the service's log. */
export class AnswerFailure extends Error {
  constructor(
    message: string,
    readonly status: number,
    readonly code: string | null,
    readonly requestId: string,
    readonly retryAfterS: number | null = null,
  ) {
    super(message);
  }
}

let apiKey = "";
let tellOver = () => {};

/** Calls `over` when the service says that the page's session has ended. */
export function onOver(over: () => void): void {
  tellOver = over;
}

/** The API key of further calls; empty: the session's cookie, if there is one. */
export function useKey(key: string): void {
  apiKey = key;
}

function headers(): Record<string, string> {
  const common = { "Content-Type": "application/json", ...asUser() };
  return apiKey ? { ...common, Authorization: `Bearer ${apiKey}` } : common;
}

/** Returns a call's answer as JSON. Throws AnswerFailure; status 0: the service was not reached. */
export async function ask<Answer>(method: string, path: string, body?: object, signal?: AbortSignal): Promise<Answer> {
  const response = await send(method, path, body, signal);
  return (await response.json()) as Answer;
}

/** Returns a successful response. `keepalive`: the request is sent even if the page is left now. */
export async function send(method: string, path: string, body?: object, signal?: AbortSignal, keepalive = false): Promise<Response> {
  let response: Response;
  try {
    const text = body === undefined ? null : JSON.stringify(body);
    response = await fetch(path, { method, headers: headers(), body: text, signal: signal ?? null, keepalive });
  } catch (error) {
    if (signal?.aborted) throw error;
    throw new AnswerFailure("The service cannot be reached.", 0, null, "");
  }
  if (response.ok) return response;
  const answer = (await response.json().catch(() => null)) as { error?: Wire } | null;
  const wait = Number.parseInt(response.headers.get("Retry-After") ?? "", 10);
  const { message, code, retryAfterS } = worded(answer?.error, response.status, Number.isNaN(wait) ? null : wait);
  throw new AnswerFailure(message, response.status, code, response.headers.get("x-request-id") ?? "", retryAfterS);
}

interface Wire {
  message?: string;
  code?: string | null;
  param?: string | null;
}

/** Words a failure of the service for users. `status` 200: an answer broke off. */
function worded(wire: Wire | null | undefined, status: number, retryAfterS: number | null = null) {
  const code = wire?.code ?? null;
  if (isOver(code)) tellOver();
  const setting = status === 400 && code !== "context_length_exceeded" ? settingOf(wire?.param) : "";
  const plain = inWordsOf({ status, code, message: wire?.message ?? "The answer broke off.", retryAfterS });
  return { message: setting ? `"${setting}" has a value that this model does not take: change it in the settings.` : plain, code, retryAfterS };
}

/** Whether it has a chat template. */
export const canChat = (model: Model): boolean => model.capabilities.includes("chat");

/** Whether the model of that name is known to have no chat template. */
export const isMute = (models: Model[], name: string): boolean => models.some((one) => one.id === name && !canChat(one));

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

function sampling(knobs: Knobs): Record<string, number> {
  const set: Record<string, number> = {};
  if (knobs.temperature !== null) set.temperature = knobs.temperature;
  if (knobs.topP !== null) set.top_p = knobs.topP;
  return set;
}

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

interface Chunk {
  choices?: { delta?: { content?: string | null; reasoning_content?: string | null }; finish_reason?: string | null }[];
  usage?: WireUsage | null;
  prompt_progress?: WireProgress;
  error?: { message?: string; code?: string | null };
}

/** Generates an answer by /v1/chat/completions from the client's history: the service stores nothing. Throws AnswerFailure. */
export async function* completed(
  model: string, said: Said[], knobs: Knobs, seed: number, signal: AbortSignal,
): AsyncGenerator<Piece> {
  const system: Said[] = knobs.system.trim() ? [{ role: "system", content: knobs.system }] : [];
  const body = {
    model, messages: [...system, ...said], stream: true, stream_options: { include_usage: true }, return_progress: true, seed,
    ...sampling(knobs), ...(knobs.maxTokens === null ? {} : { max_completion_tokens: knobs.maxTokens }),
  };
  const response = await send("POST", "/v1/chat/completions", body, signal);
  const requestId = response.headers.get("x-request-id") ?? "";
  yield { kind: "admitted" };
  let isWhole = false;
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
    if (text) yield { kind: "text", text };
    if (choice?.finish_reason) yield { kind: "end", isCut: choice.finish_reason === "length", isStopped: false };
    if (chunk.usage) {
      const { prompt_tokens, completion_tokens, prompt_tokens_details } = chunk.usage;
      const rememberedTokens = prompt_tokens_details?.cached_tokens ?? 0;
      yield { kind: "usage", usage: { promptTokens: prompt_tokens, answerTokens: completion_tokens, rememberedTokens } };
    }
  }
  if (!isWhole) throw broken(requestId);
}

interface ResponseBody {
  id?: string;
  status?: string;
  error?: { message?: string; code?: string } | null;
  incomplete_details?: { reason?: string } | null;
  output?: { id: string; type: string; content?: { text?: string }[] }[];
  usage?: { input_tokens: number; output_tokens: number; input_tokens_details?: { cached_tokens?: number } } | null;
}

interface ResponseEvent {
  type: string;
  sequence_number?: number;
  delta?: string;
  item?: { id: string; type: string };
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
  model: string, conversation: { id: string; parent: string }, question: string, knobs: Knobs, seed: number, signal: AbortSignal,
): AsyncGenerator<Piece> {
  const body = {
    model, conversation, input: question, stream: true, background: true, return_progress: true, seed, ...sampling(knobs),
    ...(knobs.system.trim() ? { instructions: knobs.system } : {}),
    ...(knobs.maxTokens === null ? {} : { max_output_tokens: knobs.maxTokens }),
  };
  const response = await send("POST", "/v1/responses", body, signal);
  yield { kind: "admitted" };
  yield* followed("", response, signal);
}

/** Restarts the request while no worker is up. */
export async function* whenThere(begin: (signal: AbortSignal) => AsyncGenerator<Piece>, signal: AbortSignal): AsyncGenerator<Piece> {
  const untilMs = Date.now() + LOST_AFTER_MS;
  for (;;) {
    try {
      yield* begin(signal);
      return;
    } catch (error) {
      // Refused before it began: an answer that began and broke off has another status.
      if (!(error instanceof AnswerFailure) || error.status !== 503 || Date.now() > untilMs) throw error;
    }
    yield { kind: "lost" };
    await new Promise((resolve) => setTimeout(resolve, COME_BACK_MS));
    signal.throwIfAborted();
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
        }
        if (event.prompt_progress) yield progressOf(event.prompt_progress);
        if (event.type === "response.output_item.added" && event.item?.type === "message") yield { kind: "item", id: event.item.id };
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
  if (message) yield { kind: "item", id: message.id };
  if (text || thought) yield { kind: "whole", text, thought };
  yield {
    kind: "end", isCut: response.incomplete_details?.reason === "max_output_tokens", isStopped: response.status === "cancelled",
  };
  const usage = response.usage;
  if (usage) {
    const rememberedTokens = usage.input_tokens_details?.cached_tokens ?? 0;
    yield { kind: "usage", usage: { promptTokens: usage.input_tokens, answerTokens: usage.output_tokens, rememberedTokens } };
  }
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
    await new Promise((resolve) => setTimeout(resolve, COME_BACK_MS));
    signal.throwIfAborted();
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

/** Whether a failure means that nobody is logged in, or the key is wrong. */
export function isLoggedOut(error: unknown): boolean {
  return error instanceof AnswerFailure && error.status === 401;
}
