// The list of conversations, in parts.
import { expect, test, vi } from "vitest";

vi.stubGlobal("localStorage", { getItem: () => null });

import { Conversations } from "./conversations";
import type { Entry, Listed, Shelf } from "./shelf";
import type { State } from "./state";

const entry = (number: number): Entry => ({ id: `c${number}`, title: `Chat ${number}`, updatedAtMs: number, isPinned: false });

/** A list of which the service gives `each` at a time, newest first. */
function listing(count: number, each: number) {
  const all = Array.from({ length: count }, (_, place) => entry(count - place));
  const asked: string[] = [];
  const shelf = {
    list: async (words: string, after: string): Promise<Listed> => {
      asked.push(`${words}|${after}`);
      const found = all.filter((one) => one.title.includes(words));
      const start = after ? found.findIndex((one) => one.id === after) + 1 : 0;
      if (after && !start) throw new Error("There is no such conversation.");
      const entries = found.slice(start, start + each);
      return { entries, after: start + each < found.length ? (entries.at(-1)?.id ?? "") : "" };
    },
  };
  const chat = {
    state: { words: "", entries: [], hasMore: false, id: "" } as unknown as State,
    shelf: shelf as unknown as Shelf,
    set(values: Partial<State>) {
      chat.state = { ...chat.state, ...values };
    },
  };
  const conversations = new Conversations(chat as never);
  return { all, asked, chat, conversations, ids: () => chat.state.entries.map((one) => one.id) };
}

test("all conversations are listed, part by part, and a new one comes first without loading them again", async () => {
  const { all, asked, chat, conversations, ids } = listing(250, 100);
  await conversations.list();
  await vi.waitFor(() => expect(chat.state.hasMore).toBe(false));
  expect(ids()).toEqual(all.map((one) => one.id));
  expect(asked).toEqual(["|", "|c151", "|c51"]);
  all.unshift(entry(251)); // a new one
  all.splice(3, 1); // another tab has deleted this one
  await conversations.list();
  expect(ids().slice(0, 4)).toEqual(["c251", "c250", "c249", "c247"]);
  expect(ids()).toHaveLength(250);
  expect(asked).toHaveLength(4);
});

test("more than anybody looks at comes when it is scrolled to", async () => {
  const { chat, conversations, ids } = listing(1500, 100);
  await conversations.list();
  await vi.waitFor(() => expect(ids()).toHaveLength(1000));
  expect(chat.state.hasMore).toBe(true);
  for (let part = 0; part < 5; part += 1) await conversations.more();
  expect([ids().length, ids().at(-1), chat.state.hasMore]).toEqual([1500, "c1", false]);
});

test("what is searched for is listed alone, and then all again", async () => {
  const { chat, conversations, ids } = listing(250, 100);
  await conversations.list();
  await vi.waitFor(() => expect(chat.state.hasMore).toBe(false));
  chat.set({ words: "Chat 24" });
  await conversations.list();
  expect(ids()).toEqual(["c249", "c248", "c247", "c246", "c245", "c244", "c243", "c242", "c241", "c240", "c24"]);
  chat.set({ words: "" });
  await conversations.list();
  await vi.waitFor(() => expect(ids()).toHaveLength(250));
});
