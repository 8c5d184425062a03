"""How smoothly a long chat scrolls and grows in Chromium, over a service whose answers are fixed words.

python -m tests.page_views
"""

import json

from playwright.sync_api import expect

from tests.browser import ask, chromium, executable, open_page
from tests.fake_v1 import FakeV1, running

LONG = "A paragraph of **words** with `code` and a list.\n\n- one\n- two\n\n```python\nprint(1)\n```\n\n" * 12
TURNS = 200
COUNT_FRAMES = """async () => {
  const thread = document.querySelector('.thread');
  const times = [], tasks = [];
  const watch = new PerformanceObserver(list => tasks.push(...list.getEntries().map(({duration}) => duration)));
  watch.observe({type: 'longtask'});
  const end = performance.now() + 3000;
  while (performance.now() < end) {
    await new Promise(requestAnimationFrame);
    times.push(performance.now());
    %s
  }
  const gaps = times.slice(1).map((time, place) => time - times[place]).sort((a, b) => a - b);
  watch.disconnect();
  return {
    frames_per_s: Math.round(gaps.length / 3), gap_p95_ms: Math.round(gaps[Math.floor(gaps.length * 0.95)]),
    gap_max_ms: Math.round(gaps.at(-1)), long_tasks: tasks.length, longest_task_ms: Math.round(Math.max(0, ...tasks)),
  };
}"""


def frames() -> dict[str, object]:
    """Frames a second in a chat of 200 turns: while it is scrolled, and while one more answer is written.

    A long task takes 50 ms or more.
    """
    fake = FakeV1(words=[LONG])
    with running(fake), chromium(_executable()) as browser, open_page(browser, fake.url) as (page, _):
        for count in range(1, TURNS + 1):
            ask(page, f"Question {count}")
            expect(page.locator(".answer .tools")).to_have_count(count)
        characters = page.locator("#surface .column").evaluate("column => column.textContent.length")
        scrolled = page.evaluate(COUNT_FRAMES % "thread.scrollTop -= 60;")
        fake.words, fake.pause_s = [f"{word} " for word in LONG.split(" ")] * 16, 0.01
        ask(page, "One more")
        page.wait_for_timeout(500)  # any question to so large a page would be a long task itself
        grown = page.evaluate(COUNT_FRAMES % "")
        return {"turns": TURNS, "characters": characters, "scrolled": scrolled, "written": grown}


def _executable() -> str:
    found = executable()
    if found is None:
        raise SystemExit("chromium is needed")
    return found


if __name__ == "__main__":
    print(json.dumps(frames()))
