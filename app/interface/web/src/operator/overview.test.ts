import { expect, test } from "vitest";

import { failuresOf, heardWith, lasting, loadOf, moment, sorted, tokensOf, type Overview, type Worker } from "./overview";

const worker = (change: Partial<Worker>): Worker => ({
  worker_id: "w",
  node: "n",
  model_names: ["m"],
  state: "alive",
  speed: 10,
  running: 1,
  waiting: 2,
  max_running: 4,
  max_waiting: 8,
  kv_pages: 8,
  kv_pages_free: 6,
  kv_pages_cached: 5,
  generated_tokens_per_s: 2.5,
  tier: "avx2",
  ready_since: 0,
  saved_bytes: null,
  asleep: false,
  max_saved_bytes: null,
  ...change,
});

test("the load is that of the workers that get requests", () => {
  const workers = [worker({}), worker({ running: 3 }), worker({ state: "stale", running: 4 }), worker({ state: "gone" })];
  expect(loadOf(workers)).toEqual({ up: 2, running: 4, maxRunning: 8, waiting: 4, tokensPerS: 5 });
  expect(loadOf([])).toEqual({ up: 0, running: 0, maxRunning: 0, waiting: 0, tokensPerS: 0 });
});

const overview = (id: string, at: number, ...failed: number[]): Overview => ({
  at,
  ingress: { id, node: "n", replicas: 2, version: "1", up_since: 0, open_requests: 1, max_open_requests: 9 },
  models: [],
  workers: [],
  failures: failed.map((failedAt) => ({
    at: failedAt,
    request_id: `req-${failedAt}`,
    method: "GET",
    route: "/v1/models",
    status: 500,
    code: null,
    is_stream: false,
    user_id: null,
    credential: null,
  })),
});

test("ingresses that answer in turn are shown together, and one that is gone is forgotten", () => {
  const first = heardWith([], overview("a", 100, 90, 50));
  const both = heardWith(first, overview("b", 102, 95, 60));
  expect(both.map((each) => each.ingress.id)).toEqual(["b", "a"]);
  expect(failuresOf(both).map((failure) => [failure.ingress, failure.at])).toEqual([["b", 95], ["a", 90], ["b", 60], ["a", 50]]);
  const again = heardWith(both, overview("a", 104, 103));
  expect(failuresOf(again).map((failure) => failure.at)).toEqual([103, 95, 60]);
  expect(heardWith(again, overview("a", 162)).map((each) => each.ingress.id)).toEqual(["a"]);
});

test("cached tokens are prompt tokens, and count once", () => {
  expect(tokensOf({ requests: 9, prompt_tokens: 5, cached_tokens: 4, output_tokens: 2 })).toBe(7);
});

test("numbers are sorted from the largest, names from A", () => {
  const rows = [{ name: "bob", n: 2 }, { name: "Ann", n: 10 }, { name: "eve", n: 2 }];
  const names = (order: (row: { name: string; n: number }) => number | string, isReversed: boolean) =>
    sorted(rows, order, isReversed).map((row) => row.name);
  expect(names((row) => row.n, false)).toEqual(["Ann", "bob", "eve"]);
  expect(names((row) => row.n, true)).toEqual(["bob", "eve", "Ann"]);
  expect(names((row) => row.name, false)).toEqual(["Ann", "bob", "eve"]);
  expect(names((row) => row.name, true)).toEqual(["eve", "bob", "Ann"]);
  expect(rows[0]!.name).toBe("bob");
});

test("how long something has lasted", () => {
  expect([-5, 0, 59.9, 60, 3599, 3600, 5400, 86_399, 86_400, 273_600].map(lasting)).toEqual([
    "0 s", "0 s", "59 s", "1 min", "59 min", "1 h", "1 h 30 min", "23 h 59 min", "1 d", "3 d 4 h",
  ]);
});

test("a moment has its day only where that is another one", () => {
  const now = new Date(2026, 10, 25, 14, 3, 22);
  expect(moment(now.getTime() / 1000, now)).toBe("14:03:22");
  expect(moment(now.getTime() / 1000 - 86_400, now)).toBe("24 Nov, 14:03:22");
});
