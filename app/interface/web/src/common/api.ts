// Calls the service's /v1 with the session's cookie. Knows no page.
import { asUser, isOver } from "./session";
import { inWordsOf } from "./words";

/** A failure as the service words it. */
export class ApiFailure extends Error {
  constructor(
    readonly status: number,
    readonly code: string | null,
    message: string,
    /** The header Retry-After in seconds; null: there is none. */
    readonly retryAfterS: number | null = null,
  ) {
    super(message);
  }
}

/** Whether a failure means that the session has ended. */
export const hasEnded = (error: unknown): boolean =>
  error instanceof ApiFailure && (isOver(error.code) || (error.status === 401 && error.code !== "invalid_login"));

/** A part of a list of the service's. */
export interface ListPart<One> {
  data: One[];
  last_id: string;
  has_more: boolean;
}

/** Returns a whole list. read: asks for the part after what its query says; empty: the first. */
export async function wholeList<One>(read: (after: string) => Promise<ListPart<One>>): Promise<One[]> {
  const found: One[] = [];
  for (let after = ""; ; ) {
    const part = await read(after);
    found.push(...part.data);
    if (!part.has_more) return found;
    after = `&after=${encodeURIComponent(part.last_id)}`;
  }
}

/** An input that the user must correct, in words. */
export class Told extends Error {}

/** Returns the answer's JSON. Throws ApiFailure; status 0: the service was not reached, or `signal` aborted. body: JSON's, or a form. */
export async function call<Answer>(
  method: "GET" | "POST" | "DELETE",
  path: string,
  body?: object,
  signal?: AbortSignal,
): Promise<Answer> {
  const isJson = body !== undefined && !(body instanceof FormData);
  const headers = { ...asUser(), ...(isJson ? { "Content-Type": "application/json" } : {}) };
  let response: Response;
  try {
    response = await fetch(path, { method, headers, body: isJson ? JSON.stringify(body) : (body ?? null), ...(signal && { signal }) });
  } catch {
    throw new ApiFailure(0, null, "The service cannot be reached.");
  }
  const answer: unknown = await response.json().catch(() => null);
  if (response.ok && answer !== null) return answer as Answer;
  throw failureOf(response, answer);
}

function failureOf(response: Response, answer: unknown): ApiFailure {
  const error = (answer as { error?: { code?: string | null; message?: string } } | null)?.error;
  const wait = Number.parseInt(response.headers.get("Retry-After") ?? "", 10);
  const message = error?.message ?? `The service answered with status ${response.status}.`;
  return new ApiFailure(response.status, error?.code ?? null, message, Number.isNaN(wait) ? null : wait);
}

/** Words a failure for users. */
export function inWords(error: unknown): string {
  if (!(error instanceof ApiFailure)) {
    return error instanceof Told ? error.message : "Something went wrong on this page. Reload it and try again.";
  }
  return inWordsOf(error);
}
