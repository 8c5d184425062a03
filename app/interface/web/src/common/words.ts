// Words failures for users: the API's own messages speak of fields, headers and keys. Knows no page.

export interface Failed {
  status: number;
  code: string | null;
  message: string;
  retryAfterS?: number | null;
}

const WORDS: Record<string, string> = {
  invalid_login: "Name or password is wrong.",
  password_expired: "This password has expired. Ask an administrator for another one.",
  session_expired: "You were signed out. Log in.",
  another_user: "You were signed out: somebody else has logged in in this browser. Log in.",
  password_change_required: "Log in, and choose a password of your own.",
  admin_only: "This is for administrators only.",
  conversation_conflict: "An answer is being written in this chat already. Try again when it has ended.",
  context_length_exceeded: "This question is too long for the model, with the system prompt in the settings. Shorten one of them.",
  request_too_large: "This message is too long to be sent.",
  request_timeout: "The connection is too slow: the message did not arrive in time.",
  model_not_found: "This model is not there any more. Choose another one.",
  queue_full: "Too many people are asking at once. Try again in a moment.",
  too_many_background_responses: "Too many of your answers are being written at once. Try again when one has ended.",
  stored_record_damaged: "A part of this chat is damaged and cannot be opened. Tell whoever runs this service.",
  foreign_origin: "This page was opened at an address that the service does not expect. Tell whoever runs it.",
  foreign_host: "This page was opened at an address that the service does not expect. Tell whoever runs it.",
  memory_not_saved: "Not everything could be saved: there is no room. It is computed again when it is needed.",
  internal_error: "The service failed on this. Try again.",
  service_unavailable: "The service is not available. Try again in a moment.",
  request_given_up: "The service could not finish this answer. Try again.",
};
/** The names of request fields in the page's settings. */
const SETTINGS: Record<string, string> = {
  temperature: "Temperature", top_p: "Top-p", seed: "Seed", instructions: "System prompt",
  max_completion_tokens: "Longest answer", max_output_tokens: "Longest answer", max_tokens: "Longest answer",
};

/** A sentence or two without names of fields, headers or keys. */
export function inWordsOf({ status, code, message, retryAfterS = null }: Failed): string {
  const wait = retryAfterS === null ? "later" : `in ${duration(retryAfterS)}`;
  if (code === "too_many_logins") return `There were too many attempts. Try again ${wait}.`;
  if (code === "rate_limit_exceeded") return `You have asked more than you may at once. Try again ${wait}.`;
  if (code === "insufficient_quota") {
    return retryAfterS === null
      ? "There is no room for more of your chats. Delete some, or begin a new one if this chat is very long."
      : `You have used all that you may use in a day. Try again ${wait}.`;
  }
  const known = WORDS[code ?? ""];
  if (known) return known;
  if (status === 404) return "This is not there. It may have been deleted.";
  if (status === 413) return WORDS.request_too_large!;
  if (status === 429) return `The service is busy. Try again ${wait}.`;
  if (status === 0 || status >= 500) return "The service is not available. Try again in a moment.";
  return message;
}

/** The words without when to try again, where that is counted down beside them. */
export const withoutWait = (words: string): string => words.replace(/ Try again [^.]+\.$/, "");

/** The setting that sends a request's field; empty: none does. */
export const settingOf = (param: string | null | undefined): string => SETTINGS[param ?? ""] ?? "";

/** Seconds in words, rounded up: "20 seconds", "3 minutes", "5 hours". */
export function duration(seconds: number): string {
  const [count, unit] =
    seconds < 90 ? [Math.max(1, Math.ceil(seconds)), "second"] : seconds < 5400 ? [Math.ceil(seconds / 60), "minute"] : [Math.ceil(seconds / 3600), "hour"];
  return `${count} ${unit}${count === 1 ? "" : "s"}`;
}
