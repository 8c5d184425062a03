// The chat's state and the user's actions. The view renders the state; nothing here knows how.
import * as session from "../common/session";
import { type Settings, knobsOf } from "./chat_settings";
import { Connection, LOOK_AGAIN_MS } from "./connection";
import { Conversations, isKeptHere } from "./conversations";
import { Files } from "./reading";
import { KEY as KEPT_KEY, type Shelf, TabShelf, titleOf } from "./shelf";
import * as service from "./service";
import { PLAIN, STORED, type State, type User, areRead, idOf, name, newId } from "./state";
import { StoredShelf } from "./stored";
import { EMPTY, path, remembered, restored, switched } from "./tree";
import { Writing } from "./writing";

const SAVE_AFTER_MS = 500;

export class Chat {
  state: State;
  private readonly listeners = new Set<() => void>();
  readonly conversations = new Conversations(this);
  readonly connection = new Connection(this);
  readonly writing = new Writing(this);
  readonly files = new Files(this);
  readonly tab: TabShelf;
  private readonly stored = new StoredShelf(newId);
  /** Tells the other tabs which stored conversation has changed. */
  readonly others = new BroadcastChannel("redoubt");
  isOver = false;
  private hasCollections = false;
  /** The settings of new chats. */
  private usual: Settings = { model: "", knobs: PLAIN };
  /** The question that the service has not taken yet: until then it is kept as a draft. */
  private pending = "";
  private saving: ReturnType<typeof setTimeout> | undefined;
  private setting: ReturnType<typeof setTimeout> | undefined;
  private isKnown = () => {};
  /** Resolves when the user and the conversation in the address are known. */
  readonly known = new Promise<void>((resolve) => (this.isKnown = resolve));
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
      files: [], collections: [], viewed: null, writing: "", entries: [], hasMore: false, words: "", notice: "", isKept, isAnswered: false, isTemporary: false, leaving: null,
      refused: null,
    };
    // What a user has left in the tab is hidden until it is known that the user is here.
    if (session.isNobodys(storage)) this.state = { ...this.state, ...this.left() };
    service.onOver(() => this.over());
  }

  /** Loads this tab's storage. */
  private left(): Pick<State, "model" | "knobs" | "key" | "id" | "draft" | "files" | "notice"> {
    const { storage } = this;
    const kept = storage.getItem("redoubt.settings");
    this.usual = { model: storage.getItem("redoubt.model") ?? "", knobs: knobsOf(kept) };
    const key = storage.getItem("redoubt.key") ?? "";
    service.useKey(key);
    const [id, draft] = [storage.getItem("redoubt.open") ?? "", storage.getItem("redoubt.draft") ?? ""];
    return { ...(this.tab.settingsOf(id) ?? this.usual), key, id, draft, ...this.files.left() };
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
  get isStored(): boolean {
    return this.state.user !== null && !this.state.isTemporary;
  }

  /** The service's id of this chat; empty if there is none. */
  get storedId(): string {
    return this.isStored && this.state.id.startsWith(STORED) ? this.state.id : "";
  }

  get shelf(): Shelf {
    return this.state.user === null ? this.tab : this.stored;
  }

  /** The open chat's title; empty: it is new, or kept nowhere. */
  get title(): string {
    const { id, tree, entries, isTemporary } = this.state;
    if (isTemporary || !path(tree).length) return "";
    return entries.find((one) => one.id === id)?.title ?? titleOf(tree);
  }

  /** Restores the state before a reload, and loads the service's. `id`: of the conversation in the address. */
  async begin(id: string): Promise<void> {
    this.others.onmessage = ({ data }: MessageEvent<string>) => void this.known.then(() => this.follow(data));
    await this.whoIsIt();
    if (this.state.user !== null) {
      this.set({ id: "", ...this.usual });
      if (id) await this.open(id).catch(() => this.set({ notice: "There is no such conversation." }));
    } else if (this.state.id) {
      await this.tab.open(this.state.id).then((tree) => this.set({ tree }), () => this.set({ id: "" }));
    }
    this.isKnown();
    this.conversations.follow();
    this.connection.follow();
    addEventListener("storage", ({ key, newValue }) => key === KEPT_KEY && this.joinOthers(newValue));
    addEventListener("popstate", () => {
      const named = idOf(location);
      if (named && named !== this.state.id) void this.visit(named, false);
      else if (!named) this.newChat(false);
    });
    await Promise.all([this.connection.look(), this.conversations.list()]);
  }

  // --- actions of the user

  async ask(text: string): Promise<void> {
    const question = text.trim();
    await this.known; // else a user's question would be sent as a guest's
    const { writing, refused, tree } = this.state;
    if (!question || writing || this.isOver || !areRead(this.state)) return; // over: it stays a draft
    const files = this.files.take();
    this.draft("");
    const last = path(tree).at(-1)?.id ?? "";
    await this.writing.ask(refused && !refused.question && !refused.goOn ? refused.parent : last, question, files);
  }

  /** Asks again for what the service has refused. */
  async again(): Promise<void> {
    const { refused, draft } = this.state;
    if (refused?.goOn) await this.writing.goOn(refused.goOn);
    else if (refused?.question) await this.answer(refused.question);
    else if (refused) await this.ask(draft);
  }

  /** Asks an edited earlier question: a branch beside it. */
  async edit(id: string, text: string): Promise<void> {
    const old = this.state.tree.turns[id];
    if (old === undefined || !text.trim() || this.state.writing) return;
    this.files.hold(old.files ?? []);
    await this.writing.ask(old.parent, text.trim(), old.files);
  }

  /** Generates another version of an answer, by this model or by the chat's. */
  async retry(id: string, model = this.state.model): Promise<void> {
    const old = this.state.tree.turns[id];
    if (old !== undefined && !this.state.writing) await this.writing.answer(old.parent, model);
  }

  async answer(question: string): Promise<void> {
    if (!this.state.writing) await this.writing.answer(question);
  }

  async goOn(id: string): Promise<void> {
    await this.writing.goOn(id);
  }

  stop(): void {
    this.writing.stop();
  }

  show(id: string, step: number): void {
    if (this.state.writing) return;
    this.set({ tree: switched(this.state.tree, id, step) });
    this.save();
  }

  draft(draft: string): void {
    this.set({ draft });
    if (draft && !this.hasCollections) void this.loadCollections();
    this.keepDraft();
  }

  /** Loads the user's collections: not with the page, which comes sooner without. */
  async loadCollections(): Promise<void> {
    if (this.state.user === null || this.isOver) return;
    this.hasCollections = true;
    const collections = await service.collections();
    if (!this.isOver) this.set({ collections });
  }

  /** Keeps a question until the service has taken it; empty: it has. */
  unsent(question: string): void {
    if (this.isOver) return; // it is a draft for the next login
    this.pending = question;
    this.keepDraft();
    if (!question) this.files.taken();
  }

  /** Makes a question that the service has not taken a draft again. */
  unask(question: string): void {
    this.files.giveBack();
    this.pending = "";
    this.draft([question, this.state.draft].filter(Boolean).join("\n\n"));
  }

  private keepDraft(): void {
    this.storage.setItem("redoubt.draft", [this.pending, this.state.draft].filter(Boolean).join("\n\n"));
  }

  /** Changes the settings of this chat; those of a chat without questions are those of new chats too. */
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
    await this.connection.look();
  }

  /** Ends the session and deletes its texts from this tab. */
  async signOut(): Promise<void> {
    const { running } = this.writing;
    if (running?.responseId) await service.cancelled(running.responseId).catch(() => undefined);
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

  /** The service wants to know who asks, or the session has ended. */
  loggedOut(): void {
    if (this.isOver || (this.hasAccounts && !this.state.key)) this.over();
    else this.set({ needsKey: true });
  }

  /** The session has ended, here or in another tab: nothing of it stays on the screen. The draft stays in the tab. */
  private over(): void {
    if (this.isOver) return;
    this.isOver = true;
    const { id } = this.state;
    this.clear();
    session.leave(id.startsWith(STORED) ? `/c/${id}` : "/");
  }

  private clear(): void {
    this.writing.running?.abort.abort();
    this.writing.running = null;
    clearTimeout(this.setting);
    this.set({
      id: "", tree: EMPTY, entries: [], hasMore: false, words: "", notice: "", draft: "", files: [], collections: [], viewed: null, writing: "", leaving: null, knobs: PLAIN,
      refused: null,
    });
  }

  // --- conversations

  newChat(isNamed = true): void {
    this.choices += 1;
    this.leave();
    this.set({ id: "", tree: EMPTY, notice: "", isTemporary: false, ...this.settled(this.usual) });
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
    const loading = isGuest
      ? this.tab.open(id).then((tree) => ({ tree, responseId: "", settings: this.tab.settingsOf(id) ?? this.usual }))
      : this.stored.openWhole(id);
    this.opening = loading.catch(() => undefined);
    const { tree, responseId, settings } = await loading;
    if (choice !== this.choices || this.isOver) return;
    this.leave();
    this.set({ id, tree, notice: "", isTemporary: false, isAnswered: responseId !== "", ...this.settled(settings) });
    if (isGuest) this.storage.setItem("redoubt.open", id);
    else if (isNamed) name(id);
    if (responseId) void this.writing.resume(responseId);
  }

  // --- internals

  /** Settings of a chat, with a model that is served. */
  private settled({ model, knobs }: Settings): Settings {
    const { models } = this.state;
    const isServed = (wanted: string) => wanted !== "" && (!models.length || models.some((one) => one.id === wanted && service.canChat(one)));
    const usual = isServed(this.usual.model) ? this.usual.model : this.state.model;
    return { model: isServed(model) ? model : usual, knobs };
  }

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
    this.set({ ...left, draft: this.state.draft || left.draft, files: [...left.files, ...this.state.files] });
  }

  /** Handles a change made in another tab. */
  private async follow(id: string): Promise<void> {
    if (this.state.user === null) return;
    await Promise.all([this.conversations.list(), this.opening]);
    await this.readAgain(id);
  }

  /** Takes in what another tab has changed in a guest's chat that this browser keeps. */
  private joinOthers(written: string | null): void {
    if (this.state.user !== null || !this.state.isKept) return;
    const { id, tree, writing } = this.state;
    const there = this.tab.joinedWith(id, tree, written);
    this.tab.takeNewer(written);
    if (there !== null) {
      this.set({ tree: there.tree });
      if (there.isMore && !this.pending) this.save(); // two tabs have written at once
    } else if (this.tab.hasHad(id) && !writing) {
      this.newChat();
      this.set({ notice: "This chat was deleted in another tab." });
    }
    void this.conversations.list();
  }

  /** Reads the open conversation again; once more if this tab has changed it meanwhile. */
  async readAgain(id: string): Promise<void> {
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
      const settings = this.setting === undefined ? this.settled(found.settings) : {};
      this.set({ tree: remembered(found.tree, tree), isAnswered: found.responseId !== "", ...settings });
      if (found.responseId) await this.writing.resume(found.responseId);
      return;
    }
  }

  /** Stops following an answer. One that the service stores continues; a question that it has not taken is a draft again. */
  private leave(): void {
    if (this.setting !== undefined) this.sendSettings();
    if (this.pending) this.unask(this.pending);
    this.writing.leave();
  }

  private keepSettings(): void {
    const { model, knobs, tree } = this.state;
    if (!path(tree).length) {
      this.usual = { model, knobs };
      this.storage.setItem("redoubt.settings", JSON.stringify(knobs));
      this.storage.setItem("redoubt.model", model);
    }
    if (!this.isStored) return this.save();
    clearTimeout(this.setting);
    if (this.storedId) this.setting = setTimeout(() => this.sendSettings(), SAVE_AFTER_MS);
  }

  /** Stores the settings with the user's chat now. */
  private sendSettings(): void {
    clearTimeout(this.setting);
    this.setting = undefined;
    const { storedId, state } = this;
    if (!storedId) return;
    void this.stored.keepSettings(storedId, state).then(
      (isKept) => {
        if (isKept) this.others.postMessage(storedId);
        else this.set({ notice: "The system prompt is too long to be kept with this chat: it holds until you leave it." });
      },
      () => this.set({ notice: "The settings could not be kept with this chat." }),
    );
  }

  save(): void {
    this.saving ??= setTimeout(() => void this.tab.alone(() => this.flush()), SAVE_AFTER_MS);
  }

  /** Stores a guest's conversation now, and the settings. `isEnding`: the page is being left. */
  flush(isEnding = false): void {
    clearTimeout(this.saving);
    this.saving = undefined;
    if (isEnding && this.setting !== undefined) this.sendSettings();
    const { user, isTemporary, id, tree, model, knobs } = this.state;
    if (user !== null || isTemporary || !id || this.pending || !path(tree).length) return;
    const whole = this.tab.keep(id, isEnding ? (restored(tree) ?? tree) : tree, { model, knobs });
    this.storage.setItem("redoubt.open", id);
    if (isEnding) return;
    if (whole === null) this.set({ notice: "There is no room to keep this chat: it ends when you leave the page. Delete or export others." });
    else if (whole !== tree) this.set({ tree: whole });
  }
}
