// The chat's state and what a person can do with it. The view draws the state; nothing here knows how.
import { type Entry, type Shelf, TabShelf } from "./shelf";
import * as service from "./service";
import { PLAIN, STORED, type State, type User, idOf, name, newId, newSeed, parsed } from "./state";
import { StoredShelf, created, settled, turnOf } from "./stored";
import { spoken } from "./thought";
import { EMPTY, added, changed, history as asSent, path, pathTo, switched, turn, type Said, type Turn } from "./tree";

const GO_ON = "Go on exactly where your last answer stopped. Repeat nothing of it.";
const LOOK_AGAIN_MS = 1500;
const REDRAW_MS = 40;
const SEARCH_AFTER_MS = 200;
const UNDO_MS = 10_000;

export class Chat {
  state: State;
  private readonly listeners = new Set<() => void>();
  private readonly tab: TabShelf;
  private readonly stored = new StoredShelf(newId);
  private readonly others = new BroadcastChannel("redoubt");
  private leavingTimer: ReturnType<typeof setTimeout> | undefined;
  private abort: AbortController | null = null;
  private saving: ReturnType<typeof setTimeout> | undefined;
  private searching: ReturnType<typeof setTimeout> | undefined;
  private looking: Promise<void> | null = null;

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
      writing: "", entries: [], words: "", notice: "", isTemporary: false, leaving: null,
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

  /** Whether the service keeps this chat. */
  private get isStored(): boolean {
    return this.state.user !== null && !this.state.isTemporary;
  }

  private get shelf(): Shelf {
    return this.state.user === null ? this.tab : this.stored;
  }

  /** What was there before a reload, and what the service says. `id`: of the conversation that the address names. */
  async begin(id: string): Promise<void> {
    await this.whoIsIt();
    if (this.state.user !== null) {
      this.state.id = "";
      if (id) await this.open(id).catch(() => this.set({ notice: "There is no such conversation." }));
    } else if (this.state.id) {
      await this.tab.open(this.state.id).then((tree) => this.set({ tree }), () => this.set({ id: "" }));
    }
    this.others.onmessage = ({ data }: MessageEvent<string>) => void this.follow(data);
    addEventListener("popstate", () => {
      const named = idOf(location);
      if (named && named !== this.state.id) void this.open(named, false);
      else if (!named) this.newChat(false);
    });
    await Promise.all([this.look(), this.list()]);
  }

  /** Asks for the models, and again until the service answers. */
  look(): Promise<void> {
    this.looking ??= this.lookUntilThere().finally(() => (this.looking = null));
    return this.looking;
  }

  private async lookUntilThere(): Promise<void> {
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
    const said = asSent(pathTo(this.state.tree, id), (each) => each.replace(/<\/?think>/g, ""));
    await this.write(id, [...said, { role: "user", content: GO_ON }], old.text);
  }

  stop(): void {
    this.abort?.abort();
  }

  show(id: string, step: number): void {
    if (this.state.writing) return;
    this.set({ tree: switched(this.state.tree, id, step) });
    this.save();
    if (this.isStored) void this.settle();
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

  /** Lists what has these words, once nothing more is typed: each search reads all that is stored. */
  search(words: string): void {
    this.set({ words });
    clearTimeout(this.searching);
    this.searching = setTimeout(() => void this.list(), SEARCH_AFTER_MS);
  }

  async list(): Promise<void> {
    const { words } = this.state;
    const entries = await this.shelf.list(words).catch(() => null);
    if (entries !== null && words === this.state.words) this.set({ entries });
  }

  newChat(isNamed = true): void {
    this.leave();
    this.set({ id: "", tree: EMPTY, notice: "", isTemporary: false });
    this.storage.removeItem("redoubt.open");
    if (isNamed && this.state.user !== null && idOf(location)) history.pushState(null, "", "/");
  }

  /** A chat that is kept nowhere, or an ordinary one; before its first question. */
  setTemporary(isTemporary: boolean): void {
    if (path(this.state.tree).length) this.newChat();
    this.set({ isTemporary });
  }

  async open(id: string, isNamed = true): Promise<void> {
    this.leave();
    const tree = await this.shelf.open(id);
    this.set({ id, tree, notice: "", isTemporary: false });
    if (this.state.user === null) this.storage.setItem("redoubt.open", id);
    else if (isNamed) name(id);
  }

  async rename(entry: Entry, title: string): Promise<void> {
    await this.told(async () => title.trim() && this.shelf.rename(entry, title.trim()));
  }

  async pin(entry: Entry): Promise<void> {
    await this.told(() => this.shelf.pin(entry, !entry.isPinned));
  }

  /** Deletes it in ten seconds, or at once when another one is deleted or the page is left. */
  remove(entry: Entry): void {
    this.removeNow();
    if (entry.id === this.state.id) this.newChat();
    this.set({ leaving: entry });
    this.leavingTimer = setTimeout(() => this.removeNow(), UNDO_MS);
  }

  undo(): void {
    clearTimeout(this.leavingTimer);
    this.set({ leaving: null });
  }

  removeNow(): void {
    const entry = this.state.leaving;
    clearTimeout(this.leavingTimer);
    if (entry === null) return;
    this.set({ leaving: null, entries: this.state.entries.filter((one) => one.id !== entry.id) });
    void this.told(() => this.shelf.remove(entry.id));
  }

  // --- how it works

  /** The user whose session the browser has; a guest has none. */
  private async whoIsIt(): Promise<void> {
    if (!this.hasAccounts) return;
    const user = await service.ask<User>("GET", "/v1/auth/session").catch(() => null);
    this.set({ user });
  }

  /** A change of what is kept, after which all tabs list anew. */
  private async told(change: () => Promise<unknown>): Promise<void> {
    await change().catch((error: unknown) => {
      this.set({ notice: error instanceof service.AnswerFailure ? error.message : "That did not work." });
    });
    this.others.postMessage(this.state.id);
    await this.list();
  }

  /** Another tab has changed something. */
  private async follow(id: string): Promise<void> {
    if (this.state.user === null) return;
    await this.list();
    if (id !== this.state.id || !id || this.state.writing) return;
    const tree = await this.stored.open(id).catch(() => null);
    if (tree !== null && id === this.state.id && !this.state.writing) this.set({ tree });
  }

  private leave(): void {
    this.stop();
    this.flush();
    this.set({ writing: "" });
  }

  private async branch(parent: string, question: string): Promise<void> {
    const asked = turn({ id: newId(), parent, role: "user", text: question, askedAtMs: Date.now() });
    if (!this.state.id) {
      this.set({ id: newId() });
      if (this.state.user === null) this.storage.setItem("redoubt.open", this.state.id);
    }
    this.set({ tree: added(this.state.tree, asked) });
    await this.answer(asked.id);
  }

  private async answer(question: string): Promise<void> {
    const said = asSent(pathTo(this.state.tree, question), spoken);
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
    let conversation = this.state.id;
    const isStored = this.isStored;
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
      // A question that comes before the models are known waits for them, unless it is stopped.
      if (!this.state.model) {
        const stopped = new Promise<never>((_, reject) => abort.signal.addEventListener("abort", reject));
        await Promise.race([this.look(), stopped]);
      }
      if (isStored && !conversation.startsWith(STORED)) {
        const made = await created();
        if (this.state.id === conversation) {
          this.set({ id: made });
          name(made);
        }
        conversation = made;
      }
      const pieces = isStored && !before ? turnOf(conversation, said, this.state.model, this.state.knobs, abort.signal) : this.sent(said, abort.signal);
      for await (const piece of pieces) {
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
      if (isStored && before && this.state.id === conversation) await this.settle();
      if (isStored) this.others.postMessage(conversation);
      void this.list();
    }
  }

  private sent(said: Said[], signal: AbortSignal): AsyncGenerator<service.Piece> {
    const { model, knobs } = this.state;
    return service.completed(model, said, knobs, knobs.seed ?? newSeed(), signal);
  }

  /** Stores the conversation as it is shown. Where that fails the next turn does it. */
  private async settle(): Promise<void> {
    await settled(this.state.id, asSent(path(this.state.tree), (text) => text.trim())).catch(() => undefined);
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
    const isOurs = this.state.user === null && !this.state.isTemporary;
    if (isOurs && this.state.id && path(this.state.tree).length) this.tab.keep(this.state.id, this.state.tree);
  }
}
