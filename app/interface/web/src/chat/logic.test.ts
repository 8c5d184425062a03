// @vitest-environment jsdom
import { describe, expect, test } from "vitest";

import { PLAIN, asMetadata, knobsOf, ofMetadata, withoutSettings } from "./chat_settings";
import { EventParser } from "./events";
import { KEY, TabShelf } from "./shelf";
import { leaves, short } from "./meter";
import { cutBy } from "./outcome";
import { treeOfItems } from "./stored";
import { apart } from "./thought";
import { asMarkdown, exported, imported } from "./transfer";
import { EMPTY, type Tree, type Turn, added, changed, firstSeen, history, joined, path, pathTo, removed, restored, switched, treeOf, turn } from "./tree";

describe("events", () => {
  test("come whole, however their bytes are cut", () => {
    const stream = 'data: {"a":1}\r\n\r\n: remark\ndata: one\ndata: two\n\ndata:[DONE]\n\n';
    for (let size = 1; size < stream.length; size += 1) {
      const parser = new EventParser();
      const found: string[] = [];
      for (let at = 0; at < stream.length; at += size) found.push(...parser.add(stream.slice(at, at + size)));
      expect(found).toEqual(['{"a":1}', "one\ntwo", "[DONE]"]);
    }
  });
});

describe("a tree of turns", () => {
  const asked = added(EMPTY, turn({ id: "q1", parent: "", role: "user", text: "One?" }));
  const answered = added(asked, turn({ id: "a1", parent: "q1", role: "assistant", text: "1", status: "done" }));

  test("keeps the versions of an answer", () => {
    const twice = added(answered, turn({ id: "a2", parent: "q1", role: "assistant", text: "I", status: "done" }));
    expect(path(twice).map((one) => one.id)).toEqual(["q1", "a2"]);
    expect(path(switched(twice, "a2", -1)).map((one) => one.id)).toEqual(["q1", "a1"]);
    expect(switched(twice, "a2", 1)).toBe(twice);
    expect(pathTo(twice, "a1").map((one) => one.id)).toEqual(["q1", "a1"]);
  });

  test("sends no question without an answer but the last, and no thoughts", () => {
    const thought = changed(answered, "a1", { text: "1", thought: "hm" });
    const stopped = added(
      added(thought, turn({ id: "q2", parent: "a1", role: "user", text: "Two?" })),
      turn({ id: "a2", parent: "q2", role: "assistant", status: "stopped", text: "", thought: "not yet" }),
    );
    const next = added(stopped, turn({ id: "q3", parent: "a2", role: "user", text: "Three?" }));
    expect(history(path(next))).toEqual([
      { role: "user", content: "One?" },
      { role: "assistant", content: "1" },
      { role: "user", content: "Three?" },
    ]);
  });

  test("is restored as broken off where it was being written, and refused where it is none", () => {
    const open = changed(answered, "a1", { status: "writing" });
    expect(restored(JSON.parse(JSON.stringify(open)))?.turns.a1?.status).toBe("stopped");
    expect(restored(null)).toBeNull();
    expect(restored({ turns: { x: { role: "system" } }, children: {}, chosen: {} })).toBeNull();
  });

  test("is made of messages", () => {
    let count = 0;
    const tree = treeOf([{ role: "user", content: "a" }, { role: "assistant", content: "b" }], () => `n${(count += 1)}`);
    expect(path(tree).map((one) => one.text)).toEqual(["a", "b"]);
  });

  test("loses a turn that was taken back, and shows what was shown before", () => {
    const twice = added(answered, turn({ id: "a2", parent: "q1", role: "assistant" }));
    expect(path(removed(twice, "a2", "a1"))).toEqual(path(answered));
    expect(removed(removed(answered, "a1"), "q1").turns).toEqual({});
    expect(removed(answered, "q1")).toBe(answered);
  });

  test("joins what two tabs have added to it", () => {
    const said = (tree: Tree, id: string, parent: string, role: Turn["role"] = "user") => added(tree, turn({ id, parent, role, text: id }));
    const here = changed(said(answered, "q2", "a1"), "a1", { text: "one" });
    const there = said(said(JSON.parse(JSON.stringify(answered)) as Tree, "q3", "a1"), "a3", "q3", "assistant");
    const both = joined(here, there, answered);
    expect(both.children.a1).toEqual(["q3", "q2"]);
    expect(path(both).map((one) => one.text)).toEqual(["One?", "one", "q2"]);
    expect(path(switched(both, "q2", -1)).map((one) => one.text)).toEqual(["One?", "one", "q3", "a3"]);
    expect(path(joined(answered, there, answered)).map((one) => one.id)).toEqual(["q1", "a1", "q3", "a3"]);
  });

  test("tells the first turn that the model still sees", () => {
    const said = (count: number, leftOut: number) => Array.from({ length: 2 * count }, (_, place) => {
      const context = place === 2 * count - 1 ? { context: { leftOut, limitTokens: 9 } } : {};
      return turn({ id: `t${place}`, parent: "", role: place % 2 ? "assistant" : "user", text: "x", ...context });
    });
    expect([firstSeen(said(5, 0)), firstSeen(said(5, 3)), firstSeen(said(5, 4))]).toEqual(["", "t6", "t8"]);
    const unanswered = said(5, 3);
    unanswered[1]!.text = ""; // the model has not been sent this question
    expect(firstSeen(unanswered)).toBe("t8");
    const asked = [...said(5, 3), turn({ id: "q", parent: "", role: "user", text: "?" }), turn({ id: "a", parent: "q", role: "assistant" })];
    expect(firstSeen(asked)).toBe("t6");
  });
});

describe("thoughts", () => {
  test.each([
    ["<think>hm", { thought: "hm", text: "" }],
    ["\n<think>\nhm\n</think>\n\nYes, </think> ends it", { thought: "hm", text: "Yes, </think> ends it" }],
    ["a <think> b", { text: "a <think> b" }],
  ])("of %j, as they were kept before", (text, expected) => expect(apart(text)).toEqual(expected));

  test("are taken out of what was kept with them in its text", () => {
    const asked = added(EMPTY, turn({ id: "q", parent: "", role: "user", text: "<think>?" }));
    const old = added(asked, turn({ id: "a", parent: "q", role: "assistant", text: "<think>hm</think>Yes", status: "done" }));
    const tree = restored(JSON.parse(JSON.stringify(old)));
    expect(tree?.turns.a).toMatchObject({ thought: "hm", text: "Yes" });
    expect(tree?.turns.q?.text).toBe("<think>?");
  });

  test("that the service keeps belong to the answers after them", () => {
    let count = 0;
    const content = [{ type: "reasoning_text", text: "hm" }];
    const tree = treeOfItems([
      { id: "m1", type: "message", role: "user", content: "Is it?", parent: "root" },
      { id: "r1", type: "reasoning", content, parent: "m1" },
      { id: "m2", type: "message", role: "assistant", content: [{ text: "Yes" }] },
      { id: "m3", type: "message", role: "user", content: "Really?" },
      { id: "r2", type: "reasoning", content: null },
      { id: "m4", type: "message", role: "assistant", content: [{ text: "No" }] },
    ], () => `n${(count += 1)}`);
    expect(path(tree).map((one) => [one.text, one.thought])).toEqual([["Is it?", undefined], ["Yes", "hm"], ["Really?", undefined], ["No", undefined]]);
    const [again] = imported(exported("T", tree), () => `n${(count += 1)}`);
    expect(path(again?.tree ?? EMPTY).map((one) => [one.text, one.thought])).toEqual(path(tree).map((one) => [one.text, one.thought]));
    expect(asMarkdown("T", tree)).toContain("## Thought\n\nhm\n\n## Answer\n\nYes");
  });
});

describe("a stored conversation", () => {
  let count = 0;
  const newId = () => `n${(count += 1)}`;
  const message = (id: string, role: string, text: string, parent?: string) =>
    ({ id, type: "message", role, content: [{ text }], ...(parent === undefined ? {} : { parent }) });
  const texts = (tree: Tree) => path(tree).map((one) => one.text);

  test("has the branches of its items, and the newest is shown", () => {
    const tree = treeOfItems([
      message("1", "user", "One?"), message("2", "assistant", "1"), message("3", "user", "Two?"), message("4", "assistant", "2"),
      message("5", "user", "Three?", "2"), message("6", "assistant", "3"),
    ], newId);
    expect(texts(tree)).toEqual(["One?", "1", "Three?", "3"]);
    const [, , shown] = path(tree);
    expect(texts(switched(tree, shown!.id, -1))).toEqual(["One?", "1", "Two?", "2"]);
    expect(path(tree).map((one) => one.itemId)).toEqual(["1", "2", "5", "6"]);
    const later = treeOfItems([
      message("1", "user", "One?"), message("2", "assistant", "1"), message("3", "user", "Two?", "root"), message("4", "user", "More?", "2"),
    ], newId);
    expect(texts(later)).toEqual(["One?", "1", "More?"]);
  });

  test("shows a question that was answered twice as one with two answers", () => {
    const tree = treeOfItems([
      message("1", "user", "One?"), message("2", "assistant", "1"), message("3", "user", "One?", "root"), message("4", "assistant", "I"),
    ], newId);
    expect(texts(tree)).toEqual(["One?", "I"]);
    expect(texts(switched(tree, path(tree)[1]!.id, -1))).toEqual(["One?", "1"]);
    expect(tree.children[""]).toHaveLength(1);
  });

  test("tells how its answers came about", () => {
    const usage = { input_tokens: 10, output_tokens: 5, input_tokens_details: { cached_tokens: 3 } };
    const context = { left_out_turns: 2, limit_tokens: 100 };
    const of = (response: object) => [message("1", "user", "One?"), { ...message("2", "assistant", "1"), status: "incomplete", response }];
    const end = (response: object) => path(treeOfItems(of(response), newId))[1];
    const counted = { promptTokens: 10, answerTokens: 5, rememberedTokens: 3 };
    expect(end({ model: "m", status: "completed", usage, context })).toMatchObject({ model: "m", usage: counted, context: { leftOut: 2, limitTokens: 100 } });
    const incomplete_details = { reason: "max_output_tokens" };
    expect(end({ status: "incomplete", incomplete_details })).toMatchObject({ status: "cut", cutBy: "length" });
    expect(end({ status: "incomplete", incomplete_details, context: { ...context, full: true } })).toMatchObject({ status: "cut", cutBy: "context" });
    expect([end({ status: "cancelled" })?.status, end({})?.status]).toEqual(["stopped", "part"]);
    const short = { id: "r", type: "reasoning", content: [{ text: "hm" }], cut: "budget" };
    expect(path(treeOfItems([message("1", "user", "One?"), short, message("2", "assistant", "1")], newId))[1]).toMatchObject({ thought: "hm", isThoughtCut: true });
    const thought = { id: "r", type: "reasoning", content: [{ text: "hm" }], response: { status: "incomplete", incomplete_details } };
    const [, only] = path(treeOfItems([message("1", "user", "One?"), thought], newId));
    expect(only).toMatchObject({ role: "assistant", text: "", thought: "hm", status: "cut", cutBy: "length", itemId: "r" });
  });

  test("leaves out what is no message, and stands a parent that was deleted", () => {
    const call = { id: "c", type: "function_call" };
    const stored = [message("1", "user", "One?"), call, message("2", "assistant", "1"), message("3", "user", "Two?", "gone")];
    expect(texts(treeOfItems(stored, newId))).toEqual(["One?", "1", "Two?"]);
  });
});

describe("files of conversations", () => {
  let count = 0;
  const newId = () => `f${(count += 1)}`;
  const texts = (tree: Tree) => path(tree).map((one) => one.text);

  test("of ours come back with their branches", () => {
    const asked = added(EMPTY, turn({ id: "q", parent: "", role: "user", text: "One?" }));
    const answered = added(asked, turn({ id: "a", parent: "q", role: "assistant", text: "1" }));
    const twice = added(answered, turn({ id: "b", parent: "q", role: "assistant", text: "I" }));
    const [found] = imported(exported("Numbers", twice), newId);
    expect(found?.title).toBe("Numbers");
    expect(texts(found!.tree)).toEqual(["One?", "I"]);
    expect(texts(switched(found!.tree, path(found!.tree)[1]!.id, -1))).toEqual(["One?", "1"]);
    expect(asMarkdown("Numbers", twice)).toBe("# Numbers\n\n## You\n\nOne?\n\n## Answer\n\nI\n");
  });

  test.each([
    ["messages", [{ role: "system", content: "x" }, { role: "user", content: "a" }, { role: "assistant", content: "b" }]],
    ["a request", { messages: [{ role: "user", content: [{ type: "text", text: "a" }] }, { role: "assistant", content: "b" }] }],
    ["Open WebUI", [{ title: "T", chat: { history: { messages: {
      m: { id: "m", parentId: null, role: "user", content: "a" }, n: { id: "n", parentId: "m", role: "assistant", content: "b" },
    } } } }]],
    ["llama-server", [{ conv: { id: "c", name: "T" }, messages: [
      { id: "0", type: "root", role: "system", content: "", parent: null },
      { id: "1", role: "user", content: "a", parent: "0" }, { id: "2", role: "assistant", content: "b", parent: "1" },
    ] }]],
  ])("of others are read: %s", (_, file) => {
    const found = imported(JSON.stringify(file), newId);
    expect(found).toHaveLength(1);
    expect(texts(found[0]!.tree)).toEqual(["a", "b"]);
  });

  test.each(["", "{", "[]", "3", "null", '{"messages":[]}', '{"items":3,"object":"conversation.export"}', '[[[]]]'])(
    "that are none are refused: %j", (text) => expect(() => imported(text, newId)).toThrow(/file/),
  );
});

describe("hostile files", () => {
  let count = 0;
  const newId = () => `h${(count += 1)}`;
  const texts = (tree: Tree) => path(tree).map((one) => one.text);

  test.each(["__proto__", "constructor", "toString"])("have ids like %s", (id) => {
    const said = [{ role: "user", content: "a", id, parentId: "" }, { role: "assistant", content: "b", id: "z", parentId: id }];
    expect(texts(imported(JSON.stringify({ messages: said }), newId)[0]!.tree)).toEqual(["a", "b"]);
    const other = [{ ...said[0], id: "q" }, { ...said[1], parentId: "q" }, { role: "user", content: "c", id: "y", parentId: id }];
    const tree = imported(JSON.stringify({ messages: other }), newId)[0]!.tree;
    expect(Object.values(tree.turns).map((one) => typeof one.parent)).toEqual(["string", "string", "string"]);
    const items = said.map((one) => ({ type: "message", role: one.role, content: one.content, id: one.id, parent: id }));
    const found = imported(JSON.stringify({ object: "conversation.export", items }), newId)[0]!.tree;
    expect(texts(found)).toEqual(["a", "b"]);
  });

  test("are refused where they are too long, and do not hold up the page", () => {
    const said = Array.from({ length: 100_000 }, () => ({ role: "user", content: "a" }));
    expect(() => imported(JSON.stringify(said), newId)).toThrow(/more than 2048/);
  });
});

describe("the tab's shelf", () => {
  test("keeps, finds, names and forgets", async () => {
    sessionStorage.clear();
    const shelf = new TabShelf(sessionStorage, () => "new");
    shelf.keep("one", treeOf([{ role: "user", content: "Sorting in Python" }], () => "x"));
    shelf.keep("two", treeOf([{ role: "user", content: "A poem" }], () => "y"));
    const listed = async (words: string) => (await shelf.list(words)).entries;
    expect((await listed("")).map((one) => one.title).sort()).toEqual(["A poem", "Sorting in Python"]);
    const [found] = await listed("PYTHON");
    expect(found?.id).toBe("one");
    await shelf.rename(found!, "Sorted");
    expect((await listed("sorted"))[0]?.title).toBe("Sorted");
    expect(path(await shelf.open("one"))[0]?.text).toBe("Sorting in Python");
    await shelf.remove("one");
    expect((await shelf.list("")).entries.map((one) => one.id)).toEqual(["two"]);
    await expect(shelf.open("one")).rejects.toThrow();
  });

  test("keeps what two tabs say in one chat, and its settings", async () => {
    sessionStorage.clear();
    const [one, two] = [new TabShelf(sessionStorage, () => "new"), new TabShelf(sessionStorage, () => "new")];
    const begun = treeOf([{ role: "user", content: "Hi" }], () => "x");
    const settings = { model: "m", knobs: { ...PLAIN, system: "Be short." } };
    one.keep("c", begun, settings);
    const seen = await two.open("c");
    one.keep("c", added(begun, turn({ id: "mine", parent: "x", role: "assistant", text: "one" })), settings);
    const whole = two.keep("c", added(seen, turn({ id: "theirs", parent: "x", role: "assistant", text: "two" })), settings);
    expect(whole?.children.x).toEqual(["mine", "theirs"]);
    expect(Object.keys((await one.open("c")).turns).sort()).toEqual(["mine", "theirs", "x"]);
    expect(one.settingsOf("c")).toEqual(settings);
    expect((await one.list("be")).entries).toEqual([]);
    expect((await one.list("TWO")).entries[0]?.passage).toBe("two");
  });

  test("keeps the newest state of each turn, whatever a tab writes that has not seen it", async () => {
    sessionStorage.clear();
    const [one, two] = [new TabShelf(sessionStorage, () => "new"), new TabShelf(sessionStorage, () => "new")];
    const begun = treeOf([{ role: "user", content: "Hi" }], () => "x");
    const mine = turn({ id: "mine", parent: "x", role: "assistant", text: "word", status: "writing", askedAtMs: 5 });
    one.keep("c", added(begun, mine));
    two.keep("other", begun);
    const seen = await two.open("c");
    const stale = sessionStorage.getItem(KEY)!;
    const ended = changed(added(begun, mine), "mine", { text: "word word", status: "stopped", endedAtMs: 9 });
    const tree = one.keep("c", ended)!;
    const written = sessionStorage.getItem(KEY)!;
    sessionStorage.setItem(KEY, stale); // the other tab has not seen this write, and covers it with its own
    two.keep("c", added(seen, turn({ id: "theirs", parent: "x", role: "assistant", text: "two" })));
    // the first tab hears of that, and stays as it is; so does the other one, which hears of the write that it has covered
    const there = one.joinedWith("c", tree, sessionStorage.getItem(KEY));
    expect([there?.tree.turns.mine?.text, there?.isMore]).toEqual(["word word", true]);
    const heard = two.joinedWith("c", seen, written);
    expect([heard?.tree.turns.mine?.text, Object.keys(heard!.tree.turns).sort(), heard?.isMore]).toEqual(["word word", ["mine", "theirs", "x"], true]);
    two.keep("c", heard!.tree);
    expect(one.joinedWith("c", there!.tree, null)?.isMore).toBe(false);
    // an answer that is asked for again is newer than the one that had ended
    const again = changed(ended, "mine", { text: "", status: "waiting", askedAtMs: 20, endedAtMs: 0 });
    expect(joined(ended, again, ended).turns.mine?.askedAtMs).toBe(20);
    expect(joined(again, ended, ended).turns.mine?.askedAtMs).toBe(20);
  });

  test("takes over what another tab has changed in other chats", async () => {
    sessionStorage.clear();
    const shelf = new TabShelf(sessionStorage, () => "new");
    shelf.keep("one", treeOf([{ role: "user", content: "Sorting" }], () => "x"));
    const [entry] = (await shelf.list("")).entries;
    const newer = { one: { ...entry, title: "Sorted", updatedAtMs: entry!.updatedAtMs + 1 }, gone: { ...entry, id: "gone" } };
    shelf.takeNewer(JSON.stringify(newer));
    expect((await shelf.list("")).entries.map(({ title }) => title)).toEqual(["Sorted"]);
    shelf.takeNewer(JSON.stringify({ one: { ...entry, title: "Old" } }));
    expect((await shelf.list("")).entries.map(({ title }) => title)).toEqual(["Sorted"]);
  });

  test("keeps the others where one is too large, and refuses an imported one", async () => {
    const names: Record<string, string> = {};
    const small = {
      getItem: (key: string) => names[key] ?? null,
      removeItem: (key: string) => void delete names[key],
      setItem: (key: string, value: string) => {
        if (value.length > 2000) throw new DOMException("full", "QuotaExceededError");
        names[key] = value;
      },
    } as Storage;
    const shelf = new TabShelf(small, () => "new");
    const long = treeOf([{ role: "user", content: "x".repeat(3000) }], () => "z");
    shelf.keep("one", treeOf([{ role: "user", content: "Sorting in Python" }], () => "x"));
    expect(shelf.keep("two", long)).toBeNull();
    expect((await shelf.list("")).entries.map((one) => one.id)).toEqual(["one"]);
    await expect(shelf.add("Long", long)).rejects.toThrow(/no room/);
    expect((await shelf.list("")).entries.map((one) => one.id)).toEqual(["one"]);
    shelf.moveTo(small);
    expect((await shelf.list("")).entries.map((one) => one.id)).toEqual(["one"]);
  });
});

describe("settings of a chat", () => {
  test("come back from metadata, however long they are", () => {
    for (const system of ["", "Be short.", "\u{1F600}ü".repeat(1500)]) {
      const settings = { model: "m", knobs: { ...PLAIN, system, temperature: 0, think: "short" as const } };
      const metadata = asMetadata(settings)!;
      expect(Object.values(metadata).every((value) => [...value].length <= 512)).toBe(true);
      expect(ofMetadata({ title: "T", ...metadata })).toEqual(settings);
      expect(withoutSettings({ title: "T", pinned: "yes", ...metadata })).toEqual({ title: "T", pinned: "yes" });
    }
    expect(asMetadata({ model: "m", knobs: { ...PLAIN, system: "x".repeat(7000) } })).toBeNull();
    expect(ofMetadata({})).toEqual({ model: "", knobs: PLAIN });
  });

  test.each(["", "{", "null", '{"temperature":"1","think":"much","seed":null}'])("that are none are the usual ones: %j", (text) => {
    expect(knobsOf(text)).toEqual(PLAIN);
  });
});

describe("what is told of an answer", () => {
  const cut = (values: Partial<Turn>) => cutBy(turn({ id: "a", parent: "q", role: "assistant", text: "x", status: "cut", ...values }));
  const usage = { promptTokens: 100, answerTokens: 1200, rememberedTokens: 0 };

  test("is by what it was cut", () => {
    expect(cut({ cutBy: "length", usage })).toBe("Cut at the longest answer, 1,200 tokens.");
    expect(cut({ cutBy: "context" })).toBe("Cut where the context ends.");
    expect(cut({ text: "", thought: "hm", cutBy: "length", usage })).toContain("still thinking when the longest answer, 1,200 tokens, was reached");
    expect(cut({ text: "", thought: "hm", cutBy: "context" })).toContain("Let it think less.");
  });

  test("is what the next question leaves", () => {
    const answer = turn({ id: "a", parent: "q", role: "assistant", text: "x".repeat(2600), usage });
    expect([leaves([answer], answer, 2000, ""), leaves([answer], answer, 2000, "y".repeat(200)), leaves([answer], answer, 1300, "y")]).toEqual([700, 592, -9]);
    expect([short(999), short(1300), short(8192), short(131_072)]).toEqual(["999", "1.3k", "8k", "128k"]);
  });
});
