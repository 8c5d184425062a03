import { expect, test } from "vitest";

import { nextPath } from "./places";

const origin = "https://redoubt.test";
const after = (next: string) => nextPath(`?next=${encodeURIComponent(next)}`, origin);

test("paths of this site are kept", () => {
  expect(nextPath("", origin)).toBe("/");
  expect(after("/account")).toBe("/account");
  expect(after("/c/1?a=b#c")).toBe("/c/1?a=b#c");
});

test.each(["//evil.test", "/\\evil.test", "\\\\evil.test", "https://evil.test/", "javascript:alert(1)", "/\t/evil.test", "/.//evil.test", "/login", "account"])(
  "%j leads to the chat",
  (next) => expect(after(next)).toBe("/"),
);
