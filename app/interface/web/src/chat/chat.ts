// The chat's state and what a person can do with it. The view draws the state; nothing here knows how.
import * as session from "../common/session";
import { Conversations, isKeptHere } from "./conversations";
import { type Shelf, TabShelf } from "./shelf";
import * as service from "./service";
import { PLAIN, STORED, type State, type User, idOf, name, newId, newSeed, parsed } from "./state";
import { StoredShelf, created, ended, placed, questionOf, turnOf } from "./stored";
import { EMPTY, added, changed, history as asSent, path, pathTo, switched, turn, type Said, type Turn } from "./tree";

const GO_ON = "Go on exactly where your last answer stopped. Repeat nothing of it.";
const LOOK_AGAIN_MS = 1500;
const REDRAW_MS = 40;
/** How long a stopped answer may take to end at the service before this tab looks away. */
const STOPPED_MS = 2000;

/** The answer that this tab writes or follows. */
interface Running {
  abort: AbortController;
  isStopped: boolean;
  /** What the service calls it; empty: it has not said yet, or does not keep it. */
  responseId: string;
}

type Pieces = AsyncGenerator<service.Piece>;

export class Chat {
  state: State;
  private readonly listeners = new Set<() => void>();
  readonly conversations = new Conversations(this);
  readonly tab: TabShelf;
  private readonly stored = new StoredShelf(newId);
  /** Of what is kept, to the other tabs: which conversation has changed. */
  readonly others = new BroadcastChannel("redoubt");
  private running: Running | null = null;
  private isGoingOn = false;
  private isOver = false;
  private saving: ReturnType<typeof setTimeout> | undefined;
  private isKnown = () => {};
  /** When it is known who asks, and what the address names. */
  private readonly known = new Promise<void>((resolve) => (this.isKnown = resolve));
  private looking: Promise<void> | null = null;

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
    // What a user has left in the tab is not shown before it is known that the user is here.
    if (session.isNobodys(storage)) this.state = { ...this.state, ...this.left() };
    service.onOver(() => this.over());
  }

  /** What this tab's storage has. */
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

  /** Whether the service keeps this chat. */
  private get isStored(): boolean {
    return this.state.user !== null && !this.state.isTemporary;
  }

  /** The service's name for this chat; empty: it has none yet, or none at all. */
  private get storedId(): string {
    return this.isStored && this.state.id.startsWith(STORED) ? this.state.id : "";
  }

  get shelf(): Shelf {
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
    this.isKnown();
    this.others.onmessage = ({ data }: MessageEvent<string>) => void this.follow(data);
    this.conversations.follow();
    addEventListener("popstate", () => {
      const named = idOf(location);
      if (named && named !== this.state.id) void this.open(named, false);
      else if (!named) this.newChat(false);
    });
    await Promise.all([this.look(), this.conversations.list()]);
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

  // --- what a person does

  async ask(text: string): Promise<void> {
    const question = text.trim();
    await this.known; // else a user's question would be sent as a guest's
    if (!question || this.state.writing || this.isOver) return; // over: it stays a draft
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

  /** Ends the session, and forgets in this tab what was said in it. */
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

  /** The session has ended, here or in another tab: nothing of it stays on the screen. A question that was not taken is a draft again. */
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
    if (this.state.user === null) {
      const tree = await this.tab.open(id);
      this.set({ id, tree, notice: "", isTemporary: false });
      this.storage.setItem("redoubt.open", id);
      return;
    }
    const { tree, responseId } = await this.stored.openWhole(id);
    this.set({ id, tree, notice: "", isTemporary: false, isAnswered: responseId !== "" });
    if (isNamed) name(id);
    if (responseId) void this.resume(responseId);
  }

  // --- how it works

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

  /** Another tab has changed something. */
  private async follow(id: string): Promise<void> {
    if (this.state.user === null) return;
    await this.conversations.list();
    if (id !== this.state.id || !id || this.state.writing) return;
    const found = await this.stored.openWhole(id).catch((error: unknown) => {
      if (error instanceof service.AnswerFailure && error.status === 404 && id === this.state.id) {
        this.newChat();
        this.set({ notice: "This chat was deleted in another tab." });
      }
      return null;
    });
    if (found === null || id !== this.state.id || this.state.writing) return;
    this.set({ tree: found.tree, isAnswered: found.responseId !== "" });
    if (found.responseId) await this.resume(found.responseId);
  }

  /** Looks away from an answer. One that the service keeps goes on. */
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

  /** Follows an answer that the service is writing in this conversation, and that this tab has not begun. */
  private async resume(responseId: string): Promise<void> {
    const { id } = this.state;
    const place = await Promise.all([service.placeOf(responseId), questionOf(responseId)]).catch(() => null);
    this.set({ isAnswered: false });
    if (place === null || id !== this.state.id || this.state.writing) return;
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

  /** Streams an answer into its turn, after what it has already. */
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
      // A question that comes while the service is away, or before the models are known, waits, unless it is stopped.
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
          if (isStored && !isResumed) this.others.postMessage(this.state.id);
        } else if (piece.kind === "item") update({ itemId: piece.id });
        else if (piece.kind === "usage") update({ usage: piece.usage });
        else if (piece.kind === "end") status = piece.isStopped ? "stopped" : piece.isCut ? "cut" : "done";
        else {
          const isFirst = text === before && !thought;
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

  /** The answer to a question in a conversation that the service keeps, or is to keep from now on. */
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

  /** Keeps the conversation now. */
  flush(): void {
    clearTimeout(this.saving);
    this.saving = undefined;
    const isOurs = this.state.user === null && !this.state.isTemporary;
    if (isOurs && this.state.id && path(this.state.tree).length) this.tab.keep(this.state.id, this.state.tree);
  }
}
