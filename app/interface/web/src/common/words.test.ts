import { expect, test } from "vitest";

import { inWordsOf, settingOf, withoutWait } from "./words";

test.each([
  [401, "session_expired", "You were signed out. Log in."],
  [429, "queue_full", "Too many people are asking at once. Try again in a moment."],
  [413, "request_too_large", "This message is too long to be sent."],
  [429, "insufficient_quota", "There is no room for more of your chats. Delete some, or begin a new one if this chat is very long."],
  [502, null, "The service is not available. Try again in a moment."],
  [404, "not_found", "This is not there. It may have been deleted."],
])("%d %s", (status, code, words) => {
  expect(inWordsOf({ status, code, message: "'store': false, 12 bytes" })).toBe(words);
});

test("a wait is told", () => {
  const used = inWordsOf({ status: 429, code: "insufficient_quota", message: "", retryAfterS: 20_000 });
  expect(used).toBe("You have used all that you may use in a day. Try again in 6 hours.");
  expect(withoutWait(used)).toBe("You have used all that you may use in a day.");
  expect(withoutWait("The service failed on this. Try again.")).toBe("The service failed on this. Try again.");
});

test("fields have the names of the settings", () => {
  expect([settingOf("max_output_tokens"), settingOf("messages"), settingOf(null)]).toEqual(["Longest answer", "", ""]);
});
