// The list of conversations. Only the rows in sight are on the page, however many there are; arrow keys go from one to the next,
// and on from the search.
import { useEffect, useLayoutEffect, useRef, useState } from "preact/hooks";

import type { Chat } from "./chat";
import { grouped } from "./groups";
import type { Entry } from "./shelf";

/** Rows beyond those in sight, on each side. */
const SPARE_ROWS = 10;
/** Until a row is measured. */
const USUAL_PX = 40;

type Line = { day: string } | { entry: Entry };

interface Props {
  chat: Chat;
  /** A list item. */
  row: (entry: Entry) => unknown;
  empty: string;
}

export function List({ chat, row, empty }: Props) {
  const { entries, hasMore } = chat.state;
  const frame = useRef<HTMLDivElement>(null);
  const [place, setPlace] = useState({ top: 0, height: 800 });
  const [heights, setHeights] = useState({ entry: USUAL_PX, passage: USUAL_PX, day: USUAL_PX });
  const lines = grouped(entries).flatMap(([day, ones]): Line[] => [{ day }, ...ones.map((entry) => ({ entry }))]);
  const heightOf = (line: Line) => ("day" in line ? heights.day : line.entry.passage ? heights.passage : heights.entry);

  const look = () => {
    const { scrollTop: top = 0, clientHeight: height = 800 } = frame.current ?? {};
    if (top !== place.top || height !== place.height) setPlace({ top, height });
  };
  useEffect(() => {
    const one = frame.current;
    if (one === null) return;
    const watch = new ResizeObserver(look);
    watch.observe(one);
    return () => watch.disconnect();
  }, [entries.length > 0]);
  useLayoutEffect(() => {
    const measured = (selector: string, now: number) => frame.current?.querySelector<HTMLElement>(selector)?.offsetHeight || now;
    const found = {
      entry: measured("li:not(.found):not(:has(form))", heights.entry), passage: measured("li.found", heights.passage), day: measured("h2", heights.day),
    };
    if (found.entry !== heights.entry || found.passage !== heights.passage || found.day !== heights.day) setHeights(found);
  });

  let at = 0;
  const tops = lines.map((line) => (at += heightOf(line)) - heightOf(line));
  const spare = SPARE_ROWS * heights.entry;
  const first = Math.max(0, tops.findIndex((top, number) => top + heightOf(lines[number]!) > place.top - spare));
  const after = tops.findIndex((top) => top > place.top + place.height + spare);
  const last = after === -1 ? lines.length : after;
  const isNearEnd = place.top + 2 * place.height + spare > at;
  useEffect(() => {
    if (hasMore && isNearEnd) void chat.conversations.more();
  }, [hasMore, isNearEnd, entries]);

  if (!entries.length) return <div class="list"><p class="quiet small">{empty}</p></div>;
  return (
    <div class="list" ref={frame} onScroll={look} onKeyDown={(event) => onKey(event, frame.current)}>
      <div style={{ height: tops[first] ?? 0 }} />
      {sections(lines.slice(first, last), dayBefore(lines, first)).map(([day, isBegun, ones]) => (
        <section key={day} aria-label={day}>
          {!isBegun && <h2>{day}</h2>}
          <ul>{ones.map(row)}</ul>
        </section>
      ))}
      <div style={{ height: at - (tops[last] ?? at) }} />
      {hasMore && <p class="quiet small">More…</p>}
    </div>
  );
}

/** The day of a line whose heading is out of sight. */
function dayBefore(lines: Line[], place: number): string {
  for (let number = place; number >= 0; number -= 1) {
    const line = lines[number];
    if (line && "day" in line) return line.day;
  }
  return "";
}

/** Lines by day; the second value: whether the day has begun before. */
function sections(lines: Line[], day: string): [string, boolean, Entry[]][] {
  const found: [string, boolean, Entry[]][] = [];
  for (const line of lines) {
    if ("day" in line) found.push([line.day, false, []]);
    else if (found.length) found.at(-1)![2].push(line.entry);
    else found.push([day, true, [line.entry]]);
  }
  return found;
}

/** Goes to the next title, or back to the search. */
function onKey(event: KeyboardEvent, frame: HTMLElement | null): void {
  const step = event.key === "ArrowDown" ? 1 : event.key === "ArrowUp" ? -1 : 0;
  const titles = [...(frame?.querySelectorAll<HTMLElement>(".title") ?? [])];
  const place = titles.indexOf(event.target as HTMLElement);
  if (!step || place < 0) return;
  event.preventDefault();
  if (place + step < 0) document.getElementById("search")?.focus();
  else titles[place + step]?.focus();
}

/** From the search: the arrow goes to the first conversation that was found, Enter opens it. */
export function onSearchKey(event: KeyboardEvent & { currentTarget: HTMLElement }): void {
  const title = event.currentTarget.closest("nav")?.querySelector<HTMLElement>(".list .title");
  if (!title || event.isComposing || (event.key !== "ArrowDown" && event.key !== "Enter")) return;
  event.preventDefault();
  if (event.key === "Enter") title.click();
  else title.focus();
}
