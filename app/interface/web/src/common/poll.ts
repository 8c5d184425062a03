// Polls the service while the page is visible, one request at a time. Knows nothing of its content.
import { ApiFailure } from "./api";

const GIVE_UP_MS = 10_000;

export interface Seen<Answer> {
  /** The last answer, also after a failure; null: there was none yet. */
  value: Answer | null;
  /** Why the last request failed; null: it succeeded. */
  failure: unknown;
}

/** Whether polling is useless: the user has logged out, or is not allowed to see it. */
export function isFinal(failure: unknown): boolean {
  return failure instanceof ApiFailure && [401, 403, 409].includes(failure.status);
}

/**
 * Requests at once, and `periodMs` after each answer; not while the page is hidden, and at once when it becomes visible.
 * Ends by itself after a final failure. Returns a function that ends it.
 */
export function poll<Answer>(
  ask: (signal: AbortSignal) => Promise<Answer>,
  periodMs: number,
  tell: (seen: Seen<Answer>) => void,
  page: Pick<Document, "hidden" | "addEventListener" | "removeEventListener"> = document,
): () => void {
  let seen: Seen<Answer> = { value: null, failure: null };
  let timer: ReturnType<typeof setTimeout> | undefined;
  let isAsking = false;
  let hasEnded = false;

  async function look() {
    if (hasEnded || isAsking || page.hidden) return;
    clearTimeout(timer);
    isAsking = true;
    try {
      seen = { value: await ask(AbortSignal.timeout(GIVE_UP_MS)), failure: null };
    } catch (failure) {
      seen = { value: seen.value, failure };
    }
    isAsking = false;
    if (hasEnded) return;
    tell(seen);
    if (isFinal(seen.failure)) end();
    else timer = setTimeout(look, periodMs);
  }
  function end() {
    hasEnded = true;
    clearTimeout(timer);
    page.removeEventListener("visibilitychange", look);
  }
  page.addEventListener("visibilitychange", look);
  void look();
  return end;
}
