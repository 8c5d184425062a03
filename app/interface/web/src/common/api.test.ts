import { afterEach, expect, test, vi } from "vitest";

import { ApiFailure, call, inWords } from "./api";
import { duration } from "./words";

afterEach(() => vi.unstubAllGlobals());

function answering(status: number, body: string, headers: Record<string, string> = {}) {
  const fetched = vi.fn(async () => new Response(body, { status, headers }));
  vi.stubGlobal("fetch", fetched);
  return fetched;
}

test("a body is sent as JSON", async () => {
  const fetched = answering(200, '{"object":"done"}');
  expect(await call("POST", "/v1/keys", { label: "a" })).toEqual({ object: "done" });
  const sent = { method: "POST", headers: { "Content-Type": "application/json" }, body: '{"label":"a"}' };
  expect(fetched).toHaveBeenCalledWith("/v1/keys", sent);
});

test("a refusal keeps status, code and wait", async () => {
  answering(429, '{"error":{"code":"too_many_logins","message":"no"}}', { "Retry-After": "120" });
  const error = await call("POST", "/v1/auth/login", {}).catch((thrown: unknown) => thrown);
  expect(error).toMatchObject({ status: 429, code: "too_many_logins", retryAfterS: 120 });
  expect(inWords(error)).toBe("There were too many attempts. Try again in 2 minutes.");
});

test("an answer that is no JSON is a failure", async () => {
  answering(200, "<html>");
  await expect(call("GET", "/v1/keys")).rejects.toBeInstanceOf(ApiFailure);
});

test("a service that is gone is told as such", async () => {
  vi.stubGlobal("fetch", vi.fn(async () => Promise.reject(new TypeError("network"))));
  const error = await call("GET", "/v1/keys").catch((thrown: unknown) => thrown);
  expect(inWords(error)).toBe("The service is not available. Try again in a moment.");
});

test("durations", () => {
  expect([0.2, 1, 89, 90, 900].map(duration)).toEqual(["1 second", "1 second", "89 seconds", "2 minutes", "15 minutes"]);
});
