// The chat's state and what a person can do with it. The view draws the state; nothing here knows how.
import { type Entry, type Shelf, TabShelf } from "./shelf";
import * as service from "./service";
import { spoken } from "./thought";
import { EMPTY, added, changed, history, path, pathTo, switched, turn, type Said, type Tree, type Turn } from "./tree";

export interface User {
  name: string;
}

export interface State {
  /** Where it is unknown whether there are accounts, null. */
  user: User | null;
  models: service.Model[];
  /** Empty: none is known yet. */
  model: string;
  isReachable: boolean;
  needsKey: boolean;
  knobs: service.Knobs;
  key: string;
  /** Empty: a new chat. */
  id: string;
  tree: Tree;
  draft: string;
  /** The answer that is being written; empty: none. */
  writing: string;
  entries: Entry[];
  words: string;
  notice: string;
}

export const PLAIN: service.Knobs = { system: "", temperature: null, topP: null, maxTokens: null, seed: null };
const GO_ON = "Go on exactly where your last answer stopped. Repeat nothing of it.";
const LOOK_AGAIN_MS = 1500;
const REDRAW_MS = 40;

const newId = () => crypto.getRandomValues(new Uint32Array(3)).reduce((text, part) => text + part.toString(36), "");
const newSeed = () => crypto.getRandomValues(new Uint32Array(1))[0]! & 0x7fffffff;

export class Chat {
  state: State;
  private readonly listeners = new Set<() => void>();
  private readonly tab: TabShelf;
  private abort: AbortController | null = null;
  private saving: ReturnType<typeof setTimeout> | undefined;
  private looking = false;

  constructor(
    private readonly storage: Storage,
    private readonly hasAccounts: boolean,
  ) {
    this.tab = new TabShelf(storage);
    const kept = parsed(storage.getItem("redoubt.settings")) as Partial<service.Knobs & { model: string }> | null;
    const { model = "", ...knobs } = kept ?? {};
    const key = storage.getItem("redoubt.key") ?? "";
    service.useKey(key);
    this.state = {
      user: null, models: [], model, isReachable: true, needsKey: false, knobs: { ...PLAIN, ...knobs }, key,
      id: storage.getItem("redoubt.open") ?? "", tree: EMPTY, draft: storage.getItem("redoubt.draft") ?? "",
      writing: "", entries: [], words: "", notice: "",
    };
  }

  subscribe(listener: () => void): () => void {
    this.listeners.add(listener);
    return () => this.listeners.delete(listener);
  }

  set(values: Partial<State>): void {
    this.state = { ...this.state, ...values };
    for (const listener of this.listeners) listener();
  }

  /** Where the conversations are kept. */
  get shelf(): Shelf {
    return this.tab;
  }

  /** What was there before a reload, and what the service says. */
  async begin(): Promise<void> {
    if (this.state.id) {
      await this.tab.open(this.state.id).then((tree) => this.set({ tree }), () => this.set({ id: "" }));
    }
    await Promise.all([this.look(), this.list(), this.whoIsIt()]);
  }

  /** Asks for the models, and again until the service answers. */
  async look(): Promise<void> {
    if (this.looking) return;
    this.looking = true;
    try {
      for (;;) {
        try {
          const models = await service.models();
          const isServed = models.some((one) => one.id === this.state.model);
          const model = isServed ? this.state.model : (models[0]?.id ?? this.state.model);
          const isReachable = await service.isHealthy();
          this.set({ models, model, isReachable, needsKey: false });
          if (isReachable) return;
        } catch (error) {
          if (service.isLoggedOut(error)) {
            this.set({ needsKey: true, isReachable: true });
            return;
          }
          this.set({ isReachable: false });
        }
        await new Promise((resolve) => setTimeout(resolve, LOOK_AGAIN_MS));
      }
    } finally {
      this.looking = false;
    }
  }

  // --- what a person does

  async ask(text: string): Promise<void> {
    const question = text.trim();
    if (!question || this.state.writing) return;
    this.draft("");
    await this.branch(path(this.state.tree).at(-1)?.id ?? "", question);
  }

  /** Asks a question of the past in other words: a branch beside it. */
  async edit(id: string, text: string): Promise<void> {
    const old = this.state.tree.turns[id];
    if (old === undefined || !text.trim() || this.state.writing) return;
    await this.branch(old.parent, text.trim());
  }

  /** Answers the question of an answer once more: another version of it. */
  async retry(id: string): Promise<void> {
    const old = this.state.tree.turns[id];
    if (old !== undefined && !this.state.writing) await this.answer(old.parent);
  }

  /** Goes on with an answer that was cut at its longest. */
  async goOn(id: string): Promise<void> {
    const old = this.state.tree.turns[id];
    if (old === undefined || this.state.writing) return;
    const said = history(pathTo(this.state.tree, id), (each) => each.replace(/<\/?think>/g, ""));
    await this.write(id, [...said, { role: "user", content: GO_ON }], old.text);
  }

  stop(): void {
    this.abort?.abort();
  }

  show(id: string, step: number): void {
    if (this.state.writing) return;
    this.set({ tree: switched(this.state.tree, id, step) });
    this.save();
  }

  draft(draft: string): void {
    this.set({ draft });
    this.storage.setItem("redoubt.draft", draft);
  }

  change(values: Partial<service.Knobs>): void {
    this.set({ knobs: { ...this.state.knobs, ...values } });
    this.keepSettings();
  }

  choose(model: string): void {
    this.set({ model });
    this.keepSettings();
  }

  /** The key stays in this tab. */
  async useKey(key: string): Promise<void> {
    this.storage.setItem("redoubt.key", key);
    service.useKey(key);
    this.set({ key });
    await this.look();
  }

  /** Ends the session, and forgets in this tab what was said in it. */
  async signOut(): Promise<void> {
    try {
      await service.ask("POST", "/v1/auth/logout", {});
    } catch (error) {
      if (!service.isLoggedOut(error)) {
        this.set({ notice: "You are still signed in: the service did not answer." });
        return;
      }
    }
    this.set({ id: "", tree: EMPTY });
    this.storage.clear();
    location.assign("/login");
  }

  // --- conversations

  async list(words = this.state.words): Promise<void> {
    this.set({ words });
    const entries = await this.shelf.list(words).catch(() => null);
    if (entries !== null && words === this.state.words) this.set({ entries });
  }

  newChat(): void {
    this.stop();
    this.flush();
    this.set({ id: "", tree: EMPTY, notice: "", writing: "" });
    this.storage.removeItem("redoubt.open");
  }

  async open(id: string): Promise<void> {
    this.stop();
    this.flush();
    const tree = await this.shelf.open(id);
    this.set({ id, tree, notice: "", writing: "" });
    this.storage.setItem("redoubt.open", id);
  }

  async rename(entry: Entry, title: string): Promise<void> {
    if (title.trim()) await this.shelf.rename(entry, title.trim());
    await this.list();
  }

  async pin(entry: Entry): Promise<void> {
    await this.shelf.pin(entry, !entry.isPinned);
    await this.list();
  }

  async remove(id: string): Promise<void> {
    if (id === this.state.id) this.newChat();
    await this.shelf.remove(id);
    await this.list();
  }

  // --- how it works

  /** The user whose session the browser has; a guest has none. */
  private async whoIsIt(): Promise<void> {
    if (!this.hasAccounts) return;
    const user = await service.ask<User>("GET", "/v1/auth/session").catch(() => null);
    this.set({ user });
  }

  private async branch(parent: string, question: string): Promise<void> {
    const asked = turn({ id: newId(), parent, role: "user", text: question, askedAtMs: Date.now() });
    if (!this.state.id) {
      this.set({ id: newId() });
      this.storage.setItem("redoubt.open", this.state.id);
    }
    this.set({ tree: added(this.state.tree, asked) });
    await this.answer(asked.id);
  }

  private async answer(question: string): Promise<void> {
    const said = history(pathTo(this.state.tree, question), spoken);
    const one = turn({ id: newId(), parent: question, role: "assistant", model: this.state.model });
    this.set({ tree: added(this.state.tree, one) });
    await this.write(one.id, said, "");
  }

  /** Streams an answer into its turn, after what it has already. */
  private async write(id: string, said: Said[], before: string): Promise<void> {
    const abort = new AbortController();
    this.abort = abort;
    let text = before;
    let drawnAtMs = 0;
    const conversation = this.state.id;
    const update = (values: Partial<Turn>) => {
      if (this.state.id === conversation) this.set({ tree: changed(this.state.tree, id, values) });
    };
    const { [id]: old } = this.state.tree.turns;
    if (old === undefined) return;
    const { failure: _, usage: __, ...kept } = old;
    const fresh: Turn = { ...kept, status: "waiting", askedAtMs: Date.now(), firstAtMs: 0, endedAtMs: 0 };
    this.set({ writing: id, tree: { ...this.state.tree, turns: { ...this.state.tree.turns, [id]: fresh } } });
    this.save();
    let status: Turn["status"] = "done";
    try {
      if (!this.state.model) await this.look();
      const knobs = this.state.knobs;
      for await (const piece of service.completed(this.state.model, said, knobs, knobs.seed ?? newSeed(), abort.signal)) {
        if (piece.kind === "admitted") update({ status: "reading", model: this.state.model });
        else if (piece.kind === "usage") update({ usage: piece.usage });
        else if (piece.kind === "end") status = piece.isCut ? "cut" : "done";
        else {
          const isFirst = text === before;
          text += piece.text;
          const nowMs = Date.now();
          if (isFirst) update({ firstAtMs: nowMs });
          if (nowMs - drawnAtMs < REDRAW_MS) continue;
          const isThoughtOver = text.includes("</think>") && !this.state.tree.turns[id]?.thoughtUntilMs;
          update({ text, status: "writing", ...(isThoughtOver ? { thoughtUntilMs: nowMs } : {}) });
          drawnAtMs = nowMs;
          this.save();
        }
      }
      update({ text, status, endedAtMs: Date.now() });
      this.set({ isReachable: true });
    } catch (error) {
      if (abort.signal.aborted) update({ text, status: "stopped", endedAtMs: Date.now() });
      else this.fail(update, text, error);
    } finally {
      if (this.abort === abort) {
        this.abort = null;
        this.set({ writing: "" });
      }
      this.flush();
      void this.list();
    }
  }

  private fail(update: (values: Partial<Turn>) => void, text: string, error: unknown): void {
    const failure = error instanceof service.AnswerFailure ? error : null;
    const message = failure?.message ?? "Something went wrong on this page.";
    update({ text, status: "failed", endedAtMs: Date.now(), failure: { message, requestId: failure?.requestId ?? "" } });
    if (service.isLoggedOut(error)) this.set({ needsKey: true });
    else if (failure === null || failure.status === 0 || failure.status >= 500) void this.look();
    if (failure?.code === "model_not_found") void this.look();
  }

  private keepSettings(): void {
    this.storage.setItem("redoubt.settings", JSON.stringify({ ...this.state.knobs, model: this.state.model }));
  }

  private save(): void {
    this.saving ??= setTimeout(() => this.flush(), 500);
  }

  /** Keeps the conversation now. */
  flush(): void {
    clearTimeout(this.saving);
    this.saving = undefined;
    if (this.state.id && path(this.state.tree).length) this.tab.keep(this.state.id, this.state.tree);
  }
}

function parsed(text: string | null): unknown {
  try {
    return text === null ? null : JSON.parse(text);
  } catch {
    return null;
  }
}
