// The chat's state and the user's actions. The view renders the state; nothing here knows how.
import * as session from "../common/session";
import { Conversations, isKeptHere } from "./conversations";
import { type Shelf, TabShelf } from "./shelf";
import * as service from "./service";
import { PLAIN, STORED, type State, type User, idOf, name, newId, newSeed, parsed } from "./state";
import { type Opened, StoredShelf, created, ended, placed, questionOf, turnOf } from "./stored";
import { EMPTY, added, changed, history as asSent, path, pathTo, remembered, switched, turn, type Said, type Turn } from "./tree";

const GO_ON = "Go on exactly where your last answer stopped. Repeat nothing of it.";
const LOOK_AGAIN_MS = 1500;
const REDRAW_MS = 40;
/** How long a stopped answer may take to end at the service before this tab stops following it. */
const STOPPED_MS = 2000;

/** The answer that this tab generates or follows. */
interface Running {
  abort: AbortController;
  isStopped: boolean;
  /** The service's id of the answer; empty: unknown yet, or the service does not store it. */
  responseId: string;
}

type Pieces = AsyncGenerator<service.Piece>;

export class Chat {
  state: State;
  private readonly listeners = new Set<() => void>();
  readonly conversations = new Conversations(this);
  readonly tab: TabShelf;
  private readonly stored = new StoredShelf(newId);
  /** Tells the other tabs which stored conversation has changed. */
  readonly others = new BroadcastChannel("redoubt");
  private running: Running | null = null;
  private isGoingOn = false;
  private isOver = false;
  private saving: ReturnType<typeof setTimeout> | undefined;
  private isKnown = () => {};
  /** Resolves when the user and the conversation in the address are known. */
  private readonly known = new Promise<void>((resolve) => (this.isKnown = resolve));
  private looking: Promise<void> | null = null;
  /** Counts the user's choices of a conversation: one that is loaded after a later choice is not shown. */
  private choices = 0;
  /** Resolves when the conversation chosen last is loaded. */
  private opening: Promise<unknown> = Promise.resolve();

  constructor(
    readonly storage: Storage,
    private readonly hasAccounts: boolean,
  ) {
    const isKept = isKeptHere();
    this.tab = new TabShelf(isKept ? localStorage : storage, newId);
    this.state = {
      user: null, models: [], model: "", isReachable: true, needsKey: false, knobs: PLAIN, key: "", id: "", tree: EMPTY, draft: "",
      writing: "", entries: [], words: "", notice: "", isKept, isAnswered: false, isTemporary: false, leaving: null,
    };
    // What a user has left in the tab is hidden until it is known that the user is here.
    if (session.isNobodys(storage)) this.state = { ...this.state, ...this.left() };
    service.onOver(() => this.over());
  }

  /** Loads this tab's storage. */
  private left(): Pick<State, "model" | "knobs" | "key" | "id" | "draft"> {
    const { storage } = this;
    const kept = parsed(storage.getItem("redoubt.settings")) as Partial<service.Knobs & { model: string }> | null;
    const { model = "", ...knobs } = kept ?? {};
    const key = storage.getItem("redoubt.key") ?? "";
    service.useKey(key);
    const [id, draft] = [storage.getItem("redoubt.open") ?? "", storage.getItem("redoubt.draft") ?? ""];
    return { model, knobs: { ...PLAIN, ...knobs }, key, id, draft };
  }

  subscribe(listener: () => void): () => void {
    this.listeners.add(listener);
    return () => this.listeners.delete(listener);
  }

  set(values: Partial<State>): void {
    this.state = { ...this.state, ...values };
    for (const listener of this.listeners) listener();
  }

  /** Whether the service stores this chat. */
  private get isStored(): boolean {
    return this.state.user !== null && !this.state.isTemporary;
  }

  /** The service's id of this chat; empty if there is none. */
  private get storedId(): string {
    return this.isStored && this.state.id.startsWith(STORED) ? this.state.id : "";
  }

  get shelf(): Shelf {
    return this.state.user === null ? this.tab : this.stored;
  }

  /** Restores the state before a reload, and loads the service's. `id`: of the conversation in the address. */
  async begin(id: string): Promise<void> {
    this.others.onmessage = ({ data }: MessageEvent<string>) => void this.known.then(() => this.follow(data));
    await this.whoIsIt();
    if (this.state.user !== null) {
      this.state.id = "";
      if (id) await this.open(id).catch(() => this.set({ notice: "There is no such conversation." }));
    } else if (this.state.id) {
      await this.tab.open(this.state.id).then((tree) => this.set({ tree }), () => this.set({ id: "" }));
    }
    this.isKnown();
    this.conversations.follow();
    document.addEventListener("visibilitychange", () => {
      if (document.visibilityState === "visible" && !this.state.writing) void this.look(); // models come, go and sleep
    });
    addEventListener("popstate", () => {
      const named = idOf(location);
      if (named && named !== this.state.id) void this.visit(named, false);
      else if (!named) this.newChat(false);
    });
    await Promise.all([this.look(), this.conversations.list()]);
  }

  /** Loads the models, with retries until the service answers. */
  look(): Promise<void> {
    this.looking ??= this.lookUntilThere().finally(() => (this.looking = null));
    return this.looking;
  }

  private async lookUntilThere(): Promise<void> {
    for (;;) {
      try {
        const models = await service.models();
        const chatting = models.filter(service.canChat);
        const isServed = chatting.some((one) => one.id === this.state.model);
        const model = isServed ? this.state.model : ((chatting[0] ?? models[0])?.id ?? this.state.model);
        const isReachable = await service.isHealthy();
        this.set({ models, model, isReachable, needsKey: false });
        if (isReachable) return;
      } catch (error) {
        if (this.isOver || service.isLoggedOut(error)) {
          this.set({ isReachable: true });
          if (this.hasAccounts && !this.state.key) this.over();
          else this.set({ needsKey: true });
          return;
        }
        this.set({ isReachable: false });
      }
      await new Promise((resolve) => setTimeout(resolve, LOOK_AGAIN_MS));
    }
  }

  // --- actions of the user

  async ask(text: string): Promise<void> {
    const question = text.trim();
    await this.known; // else a user's question would be sent as a guest's
    if (!question || this.state.writing || this.isOver) return; // over: it stays a draft
    this.draft("");
    await this.branch(path(this.state.tree).at(-1)?.id ?? "", question);
  }

  /** Asks an edited earlier question: a branch beside it. */
  async edit(id: string, text: string): Promise<void> {
    const old = this.state.tree.turns[id];
    if (old === undefined || !text.trim() || this.state.writing) return;
    await this.branch(old.parent, text.trim());
  }

  /** Generates another version of an answer. */
  async retry(id: string): Promise<void> {
    const old = this.state.tree.turns[id];
    if (old !== undefined && !this.state.writing) await this.answer(old.parent);
  }

  /** Continues an answer that reached its limit. */
  async goOn(id: string): Promise<void> {
    const old = this.state.tree.turns[id];
    if (old === undefined || this.state.writing) return;
    const said = asSent(pathTo(this.state.tree, id));
    await this.write(id, old.text, (signal) => this.sent([...said, { role: "user", content: GO_ON }], signal));
    const { storedId } = this;
    if (!storedId || this.state.tree.turns[id] === undefined) return;
    const itemId = await placed(storedId, pathTo(this.state.tree, id)).catch(() => ""); // the next turn tries again
    if (itemId && this.storedId === storedId) this.set({ tree: changed(this.state.tree, id, { itemId }) });
  }

  /** Ends the answer with what it has. */
  stop(): void {
    const { running, storedId } = this;
    if (running === null || running.isStopped) return;
    running.isStopped = true;
    if (!storedId || this.isGoingOn) return running.abort.abort();
    const ending = running.responseId ? service.cancelled(running.responseId) : ended(storedId);
    void ending.catch(() => undefined).then(() => setTimeout(() => running.abort.abort(), STOPPED_MS));
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

  /** Ends the session and deletes its texts from this tab. */
  async signOut(): Promise<void> {
    if (this.running?.responseId) await service.cancelled(this.running.responseId).catch(() => undefined);
    try {
      await service.ask("POST", "/v1/auth/logout", {});
    } catch (error) {
      if (this.isOver) return;
      if (!service.isLoggedOut(error)) {
        this.set({ notice: "You are still signed in: the service did not answer." });
        return;
      }
    }
    this.isOver = true;
    session.believe("");
    session.announce("");
    this.clear();
    this.storage.clear();
    location.assign("/login");
  }

  /** The session has ended, here or in another tab: nothing of it stays on the screen. A refused question becomes a draft again. */
  private over(): void {
    if (this.isOver) return;
    this.isOver = true;
    const { tree, writing, draft, id } = this.state;
    const question = tree.turns[tree.turns[writing]?.parent ?? ""];
    const isTaken = this.running === null || this.running.responseId !== "" || this.isGoingOn;
    if (question && !isTaken && !draft && tree.children[question.id]?.length === 1) this.draft(question.text);
    this.clear();
    session.leave(id.startsWith(STORED) ? `/c/${id}` : "/");
  }

  private clear(): void {
    this.running?.abort.abort();
    this.running = null;
    this.set({ id: "", tree: EMPTY, entries: [], words: "", notice: "", draft: "", writing: "", leaving: null, knobs: PLAIN });
  }

  // --- conversations

  newChat(isNamed = true): void {
    this.choices += 1;
    this.leave();
    this.set({ id: "", tree: EMPTY, notice: "", isTemporary: false });
    this.storage.removeItem("redoubt.open");
    if (isNamed && this.state.user !== null && idOf(location)) history.pushState(null, "", "/");
  }

  /** Switches between a temporary chat, which is not stored, and an ordinary one; before its first question. */
  setTemporary(isTemporary: boolean): void {
    if (path(this.state.tree).length) this.newChat();
    this.set({ isTemporary });
  }

  /** Opens a conversation, or says why not. */
  async visit(id: string, isNamed = true): Promise<void> {
    await this.open(id, isNamed).catch((error: unknown) => {
      this.set({ notice: error instanceof Error ? error.message : "That did not work." });
    });
  }

  async open(id: string, isNamed = true): Promise<void> {
    const choice = ++this.choices;
    const isGuest = this.state.user === null;
    if (isGuest) this.leave(); // which stores what it may open again
    const loading: Promise<Opened> = isGuest ? this.tab.open(id).then((tree) => ({ tree, responseId: "" })) : this.stored.openWhole(id);
    this.opening = loading.catch(() => undefined);
    const { tree, responseId } = await loading;
    if (choice !== this.choices || this.isOver) return;
    this.leave();
    this.set({ id, tree, notice: "", isTemporary: false, isAnswered: responseId !== "" });
    if (isGuest) this.storage.setItem("redoubt.open", id);
    else if (isNamed) name(id);
    if (responseId) void this.resume(responseId);
  }

  // --- internals

  /** The user whose session the browser has; a guest has none. */
  private async whoIsIt(): Promise<void> {
    if (!this.hasAccounts) return;
    for (;;) {
      try {
        this.set({ user: await service.ask<User>("GET", "/v1/auth/session") });
        break;
      } catch (error) {
        if (error instanceof service.AnswerFailure && error.status !== 0 && error.status < 500) break;
        this.set({ isReachable: false });
      }
      await new Promise((resolve) => setTimeout(resolve, LOOK_AGAIN_MS));
    }
    const wasNobodys = session.isNobodys(this.storage);
    session.believe(this.state.user?.user_id ?? session.NOBODY);
    session.own(this.storage);
    session.watch(() => this.over());
    if (wasNobodys) return;
    const left = this.left();
    this.set({ ...left, draft: this.state.draft || left.draft });
  }

  /** Handles a change made in another tab. */
  private async follow(id: string): Promise<void> {
    if (this.state.user === null) return;
    await Promise.all([this.conversations.list(), this.opening]);
    await this.readAgain(id);
  }

  /** Reads the open conversation again; once more if this tab has changed it meanwhile. */
  private async readAgain(id: string): Promise<void> {
    for (;;) {
      const { tree } = this.state;
      if (id !== this.state.id || !id || this.state.writing) return;
      const found = await this.stored.openWhole(id).catch((error: unknown) => {
        if (error instanceof service.AnswerFailure && error.status === 404 && id === this.state.id) {
          this.newChat();
          this.set({ notice: "This chat was deleted in another tab." });
        }
        return null;
      });
      if (found === null || id !== this.state.id || this.state.writing) return;
      if (tree !== this.state.tree) continue;
      this.set({ tree: remembered(found.tree, tree), isAnswered: found.responseId !== "" });
      if (found.responseId) await this.resume(found.responseId);
      return;
    }
  }

  /** Stops following an answer. One that the service stores continues. */
  private leave(): void {
    this.running?.abort.abort();
    this.running = null;
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

  /** Answers a question of this chat. */
  async answer(question: string): Promise<void> {
    const turns = pathTo(this.state.tree, question);
    const one = turn({ id: newId(), parent: question, role: "assistant", model: this.state.model });
    this.set({ tree: added(this.state.tree, one) });
    const { id } = this.state;
    const begin = this.isStored
      ? (signal: AbortSignal) => this.keptTurn(id, turns, signal)
      : (signal: AbortSignal) => this.sent(asSent(turns), signal);
    await this.write(one.id, "", begin);
  }

  /** Follows an answer that the service is generating in this conversation, and that this tab has not started. */
  private async resume(responseId: string): Promise<void> {
    const { id, tree: before } = this.state;
    const place = await Promise.all([service.placeOf(responseId), questionOf(responseId)]).catch(() => null);
    if (id !== this.state.id) return;
    this.set({ isAnswered: false });
    if (place === null || this.state.writing) return;
    if (before !== this.state.tree) return this.readAgain(id); // which may have the answer by now
    const [found, question] = place;
    let { tree } = this.state;
    const last = path(tree).at(-1)?.id ?? "";
    const parent = found === "root" ? "" : (Object.values(tree.turns).find((one) => one.itemId === found)?.id ?? last);
    let asked = (tree.children[parent] ?? []).find((each) => tree.turns[each]?.text === question);
    if (asked === undefined) {
      asked = newId();
      tree = added(tree, turn({ id: asked, parent, role: "user", text: question }));
    }
    const answer = turn({ id: newId(), parent: asked, role: "assistant", model: this.state.model });
    this.set({ tree: added({ ...tree, chosen: { ...tree.chosen, [parent]: asked } }, answer) });
    await this.write(answer.id, "", (signal) => service.resumed(responseId, signal), true);
  }

  /** Streams an answer into its turn, after the text that it already has. */
  private async write(id: string, before: string, begin: (signal: AbortSignal) => Pieces, isResumed = false): Promise<void> {
    const running: Running = { abort: new AbortController(), isStopped: false, responseId: "" };
    this.running = running;
    this.isGoingOn = before !== "";
    const { signal } = running.abort;
    let text = before;
    let thought = "";
    let drawnAtMs = 0;
    const isStored = this.isStored;
    const isShown = () => this.state.tree.turns[id] !== undefined && this.running === running;
    const update = (values: Partial<Turn>) => {
      if (isShown()) this.set({ tree: changed(this.state.tree, id, values) });
    };
    const { [id]: old } = this.state.tree.turns;
    if (old === undefined) return;
    const { failure: _, usage: __, itemId: ___, progress: ____, ...kept } = old;
    const fresh: Turn = { ...kept, status: "waiting", askedAtMs: Date.now(), firstAtMs: 0, thoughtUntilMs: 0, endedAtMs: 0 };
    const thoughtBefore = old.thought ? `${old.thought}\n\n` : "";
    const texts = () => ({ text, ...(thought ? { thought: thoughtBefore + thought } : {}) });
    this.set({ writing: id, tree: { ...this.state.tree, turns: { ...this.state.tree.turns, [id]: fresh } } });
    this.save();
    let status: Turn["status"] = "done";
    try {
      // A question asked while the service is down, or before the models are known, waits, unless it is stopped.
      if (!this.state.model || this.looking) {
        const stopped = new Promise<never>((_, reject) => signal.addEventListener("abort", reject));
        await Promise.race([this.look(), stopped]);
      }
      for await (const piece of service.whenThere(begin, signal)) {
        if (piece.kind === "admitted") {
          if (text === before && !thought) update({ status: "reading", model: this.state.model });
          this.set({ isReachable: true });
        } else if (piece.kind === "progress") update({ progress: piece.progress });
        else if (piece.kind === "lost") this.set({ isReachable: false });
        else if (piece.kind === "response") {
          running.responseId = piece.id;
          if (running.isStopped) void service.cancelled(piece.id).catch(() => undefined);
          if (isStored && !isResumed) this.others.postMessage(this.state.id);
        } else if (piece.kind === "item") update({ itemId: piece.id });
        else if (piece.kind === "usage") update({ usage: piece.usage });
        else if (piece.kind === "end") status = piece.isStopped ? "stopped" : piece.isCut ? "cut" : "done";
        else {
          const isFirst = text === before && !thought;
          if (isFirst) this.woken(this.state.tree.turns[id]?.model ?? "");
          const nowMs = Date.now();
          if (isFirst && !isResumed) update({ firstAtMs: nowMs });
          if (piece.kind === "text" && text === before && thought && !isResumed) update({ thoughtUntilMs: nowMs });
          if (piece.kind === "thought") thought += piece.text;
          else text = piece.kind === "whole" ? before + piece.text : text + piece.text;
          if (piece.kind === "whole") thought = piece.thought;
          if (nowMs - drawnAtMs < REDRAW_MS) continue;
          update({ ...texts(), status: "writing" });
          drawnAtMs = nowMs;
          this.save();
        }
      }
      update({ ...texts(), status, endedAtMs: Date.now() });
      this.set({ isReachable: true });
    } catch (error) {
      update(texts());
      if (signal.aborted) update({ status: "stopped", endedAtMs: Date.now() });
      else this.fail(update, error);
    } finally {
      const conversation = isShown() ? this.storedId : "";
      if (this.running === running) {
        this.running = null;
        this.set({ writing: "" });
      }
      this.flush();
      if (conversation) this.others.postMessage(conversation);
      void this.conversations.list();
    }
  }

  /** Answers a question in a conversation that the service stores, or will store from now on. */
  private async *keptTurn(id: string, turns: Turn[], signal: AbortSignal): Pieces {
    let conversation = id;
    if (!id.startsWith(STORED)) {
      conversation = await created();
      signal.throwIfAborted();
      this.set({ id: conversation });
      name(conversation);
    }
    const { model, knobs } = this.state;
    yield* turnOf(conversation, turns, model, knobs, signal);
  }

  private sent(said: Said[], signal: AbortSignal): Pieces {
    const { model, knobs } = this.state;
    return service.completed(model, said, knobs, knobs.seed ?? newSeed(), signal);
  }

  /** Notes that a model has answered, and so does not sleep. */
  private woken(model: string): void {
    const { models } = this.state;
    if (!models.some((one) => one.id === model && one.asleep)) return;
    this.set({ models: models.map((one) => (one.id === model ? { ...one, asleep: false } : one)) });
  }

  private fail(update: (values: Partial<Turn>) => void, error: unknown): void {
    const failure = error instanceof service.AnswerFailure ? error : null;
    const message = failure?.message ?? "Something went wrong on this page.";
    update({ status: "failed", endedAtMs: Date.now(), failure: { message, requestId: failure?.requestId ?? "" } });
    if (failure?.status !== 200) update({ itemId: "" }); // the service has told nothing of what it has
    if (this.isOver) return;
    if (service.isLoggedOut(error)) this.set({ needsKey: true });
    else if (failure === null || failure.status === 200 || failure.status === 0 || failure.status >= 500) void this.look();
    if (failure?.code === "model_not_found") void this.look();
  }

  private keepSettings(): void {
    this.storage.setItem("redoubt.settings", JSON.stringify({ ...this.state.knobs, model: this.state.model }));
  }

  private save(): void {
    this.saving ??= setTimeout(() => this.flush(), 500);
  }

  /** Stores the conversation now. */
  flush(): void {
    clearTimeout(this.saving);
    this.saving = undefined;
    const isOurs = this.state.user === null && !this.state.isTemporary;
    if (isOurs && this.state.id && path(this.state.tree).length) this.tab.keep(this.state.id, this.state.tree);
  }
}
