// Calls to the service: who asks, and what a refusal means. Knows no page and no route.
import { asUser, isOver } from "../common/session";
import { inWordsOf, settingOf } from "../common/words";

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

function headers(isForm: boolean): Record<string, string> {
  const common = { ...(isForm ? {} : { "Content-Type": "application/json" }), ...asUser() };
  return apiKey ? { ...common, Authorization: `Bearer ${apiKey}` } : common;
}

/** Returns a call's answer as JSON. Throws AnswerFailure; status 0: the service was not reached. */
export async function ask<Answer>(method: string, path: string, body?: object, signal?: AbortSignal): Promise<Answer> {
  const response = await send(method, path, body, signal);
  return (await response.json()) as Answer;
}

/** Returns a successful response. body: JSON's, or a form. `keepalive`: the request is sent even if the page is left now. */
export async function send(method: string, path: string, body?: object, signal?: AbortSignal, keepalive = false): Promise<Response> {
  let response: Response;
  const isForm = body instanceof FormData;
  try {
    const content = body === undefined ? null : isForm ? body : JSON.stringify(body);
    response = await fetch(path, { method, headers: headers(isForm), body: content, signal: signal ?? null, keepalive });
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

export interface Wire {
  message?: string;
  code?: string | null;
  param?: string | null;
}

/** Words a failure of the service for users. `status` 200: an answer broke off. */
export function worded(wire: Wire | null | undefined, status: number, retryAfterS: number | null = null) {
  const code = wire?.code ?? null;
  if (isOver(code)) tellOver();
  const setting = status === 400 && code !== "context_length_exceeded" ? settingOf(wire?.param) : "";
  const plain = inWordsOf({ status, code, message: wire?.message ?? "The answer broke off.", retryAfterS });
  return { message: setting ? `"${setting}" has a value that this model does not take: change it in the settings.` : plain, code, retryAfterS };
}

/** Whether a failure means that nobody is logged in, or the key is wrong. */
export function isLoggedOut(error: unknown): boolean {
  return error instanceof AnswerFailure && error.status === 401;
}
