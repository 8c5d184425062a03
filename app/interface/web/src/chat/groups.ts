// Conversations by day. Knows no page.
import type { Entry } from "./shelf";

/** Pinned ones first, then by day, newest first. */
export function grouped(entries: Entry[], nowMs = Date.now()): [string, Entry[]][] {
  const groups = new Map<string, Entry[]>();
  const today = new Date(nowMs).setHours(0, 0, 0, 0);
  const add = (name: string, one: Entry) => {
    const group = groups.get(name);
    if (group) group.push(one);
    else groups.set(name, [one]);
  };
  for (const one of entries) if (one.isPinned) add("Pinned", one);
  for (const one of entries) {
    if (one.isPinned) continue;
    const days = Math.ceil((today - one.updatedAtMs) / 86_400_000);
    add(days <= 0 ? "Today" : days === 1 ? "Yesterday" : days <= 7 ? "Last 7 days" : "Earlier", one);
  }
  return [...groups];
}
