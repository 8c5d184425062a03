import { afterEach, beforeEach, expect, test, vi } from "vitest";

import { ApiFailure } from "./api";
import { poll, type Seen } from "./poll";

class Page extends EventTarget {
  hidden = false;
  show(isShown: boolean) {
    this.hidden = !isShown;
    this.dispatchEvent(new Event("visibilitychange"));
  }
}

let page: Page;
let told: Seen<number>[];
let end: () => void;

beforeEach(() => {
  vi.useFakeTimers();
  page = new Page();
  told = [];
  end = () => undefined;
});
afterEach(() => {
  end();
  vi.useRealTimers();
});

function polling(...answers: (number | Error)[]) {
  const asked = vi.fn(async (_: AbortSignal) => {
    const answer = answers.length > 1 ? answers.shift()! : answers[0]!;
    if (answer instanceof Error) throw answer;
    return answer;
  });
  end = poll(asked, 2000, (seen) => told.push(seen), page as unknown as Document);
  return asked;
}

test("asks at once, and again two seconds after each answer", async () => {
  const asked = polling(1, 2, 3);
  await vi.advanceTimersByTimeAsync(4000);
  expect(asked).toHaveBeenCalledTimes(3);
  expect(told).toEqual([1, 2, 3].map((value) => ({ value, failure: null })));
});

test("a slow answer is waited for", async () => {
  let answer: (value: number) => void = () => undefined;
  const asked = vi.fn(() => new Promise<number>((done) => (answer = done)));
  end = poll(asked, 2000, (seen) => told.push(seen), page as unknown as Document);
  await vi.advanceTimersByTimeAsync(9000);
  page.show(true);
  expect(asked).toHaveBeenCalledTimes(1);
  answer(1);
  await vi.advanceTimersByTimeAsync(2000);
  expect(asked).toHaveBeenCalledTimes(2);
});

test("nothing is asked while the page is hidden, and at once when it is seen again", async () => {
  const asked = polling(1);
  await vi.advanceTimersByTimeAsync(0);
  page.show(false);
  await vi.advanceTimersByTimeAsync(60_000);
  expect(asked).toHaveBeenCalledTimes(1);
  page.show(true);
  await vi.advanceTimersByTimeAsync(2000);
  expect(asked).toHaveBeenCalledTimes(3);
});

test("a page that opens in the background asks when it is seen", async () => {
  page.hidden = true;
  const asked = polling(1);
  await vi.advanceTimersByTimeAsync(5000);
  expect(asked).not.toHaveBeenCalled();
  page.show(true);
  await vi.advanceTimersByTimeAsync(0);
  expect(told).toEqual([{ value: 1, failure: null }]);
});

test("after a failure the last value stays, and it goes on", async () => {
  const gone = new ApiFailure(0, null, "gone");
  polling(1, gone, 2);
  await vi.advanceTimersByTimeAsync(4000);
  expect(told).toEqual([{ value: 1, failure: null }, { value: 1, failure: gone }, { value: 2, failure: null }]);
});

test.each([401, 403])("status %i ends it", async (status) => {
  const asked = polling(new ApiFailure(status, null, "no"));
  await vi.advanceTimersByTimeAsync(60_000);
  page.show(true);
  await vi.advanceTimersByTimeAsync(0);
  expect(asked).toHaveBeenCalledTimes(1);
});

test("who has ended it hears nothing more", async () => {
  const asked = polling(1);
  end();
  await vi.advanceTimersByTimeAsync(10_000);
  page.show(true);
  expect(told).toEqual([]);
  expect(asked).toHaveBeenCalledTimes(1);
});
