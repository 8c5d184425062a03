// Answers: asks for them, and writes what comes into their turns. A question that the service has not taken is a draft again.
// Knows no page.
import { withoutWait } from "../common/words";
import { asMetadata } from "./chat_settings";
import type { Connection } from "./connection";
import { isSame } from "./files";
import type { Conversations } from "./conversations";
import * as service from "./service";
import { STORED, type State, name, newId, newSeed } from "./state";
import { created, discarded, ended, placed, questionOf, turnAgain, turnOf } from "./stored";
import { type Attached, type Failure, type Said, type Turn, added, changed, history as asSent, path, pathTo, removed, saidOf, turn } from "./tree";

const GO_ON = "Go on exactly where your last answer stopped. Repeat nothing of it.";
const REDRAW_MS = 40;
/** How long a stopped answer is still followed, as the service may have more of it than has come here. */
const STOPPED_MS = 2000;

/** The answer that this tab generates or follows. */
interface Running {
  abort: AbortController;
  isStopped: boolean;
  isGoingOn: boolean;
  /** Whether the service has taken the question. */
  isTaken: boolean;
  /** The service's id of the answer; empty: unknown yet, or the service does not store it. */
  responseId: string;
}

type Pieces = AsyncGenerator<service.Piece>;
type Begin = (signal: AbortSignal) => Pieces;

/** How an answer is asked for. */
interface Asking {
  begin: Begin;
  /** As `begin`, where the service may have taken the question already. */
  again?: Begin;
  /** Called if the service has not taken it, and the chat is still open. */
  takeBack?: (failure: service.AnswerFailure | null) => void;
  /** Called if the service has not taken it: deletes the conversation that was made for it. */
  forget?: () => void;
}

/** The open chat, as far as its answers need it. */
interface Open {
  readonly state: State;
  readonly connection: Connection;
  readonly conversations: Conversations;
  readonly others: BroadcastChannel;
  readonly isStored: boolean;
  readonly storedId: string;
  readonly isOver: boolean;
  set(values: Partial<State>): void;
  /** Keeps a question until the service has taken it. */
  unsent(question: string): void;
  /** Makes a question that the service has not taken a draft again. */
  unask(question: string): void;
  save(): void;
  flush(): void;
  readAgain(id: string): Promise<void>;
}

export class Writing {
  running: Running | null = null;

  constructor(private readonly chat: Open) {}

  /** Asks a question below a turn. A refused one becomes a draft again, and the chat is as it was. */
  async ask(parent: string, question: string, files: Attached[] = []): Promise<void> {
    const { chat } = this;
    const { id: before, tree } = chat.state;
    const asked = turn({ id: newId(), parent, role: "user", text: question, askedAtMs: Date.now(), ...(files.length && { files }) });
    chat.unsent(question);
    chat.set({ tree: added(tree, asked), id: before || newId() });
    await this.answer(asked.id, chat.state.model, (failure, answer) => {
      const now = chat.state;
      chat.set({ tree: removed(removed(now.tree, answer), asked.id, tree.chosen[parent]) });
      chat.unask(question);
      if (failure) chat.set({ refused: { failure: failureOf(failure), parent, question: "" } });
      if (before) return;
      chat.set({ id: "" });
      if (now.user && location.pathname !== "/") history.replaceState(null, "", "/");
    });
  }

  /** Answers a question of this chat. */
  async answer(question: string, model = this.chat.state.model, back?: (failure: service.AnswerFailure | null, answer: string) => void): Promise<void> {
    const { chat } = this;
    const turns = pathTo(chat.state.tree, question);
    const shown = chat.state.tree.chosen[question];
    const one = turn({ id: newId(), parent: question, role: "assistant", model: this.served(model) });
    chat.set({ tree: added(chat.state.tree, one), refused: null });
    const { id } = chat.state;
    const takeBack = (failure: service.AnswerFailure | null) => {
      if (back) return back(failure, one.id);
      const refused = failure && { failure: failureOf(failure), parent: "", question };
      chat.set({ tree: removed(chat.state.tree, one.id, shown), refused });
    };
    const versions = (chat.state.tree.children[question] ?? []).filter((each) => chat.state.tree.turns[each]?.itemId).length;
    const asked = () => this.asked(model);
    let made = "";
    const forget = () => void (made && discarded(made).catch(() => undefined));
    const begin: Begin = chat.isStored
      ? (signal) => this.keptTurn(id, turns, asked(), signal, (one) => (made = one))
      : (signal) => service.completed(asked(), asSent(turns), signal);
    const again: Begin = (signal) => (chat.storedId ? turnAgain(chat.storedId, turns, asked(), versions, signal) : begin(signal));
    await this.write(one.id, "", { begin, again, takeBack, forget });
  }

  /** Continues an answer that was stopped or cut. */
  async goOn(id: string): Promise<void> {
    const { chat } = this;
    const old = chat.state.tree.turns[id];
    if (old === undefined || chat.state.writing) return;
    const said: Said[] = [...asSent(pathTo(chat.state.tree, id)), { role: "user", content: GO_ON }];
    const asked = this.asked(old.model || chat.state.model, "off"); // it has thought already
    const takeBack = (failure: service.AnswerFailure | null) => {
      if (chat.state.tree.turns[id]) chat.set({ tree: { ...chat.state.tree, turns: { ...chat.state.tree.turns, [id]: old } } });
      if (failure) chat.set({ refused: { failure: failureOf(failure), parent: "", question: "", goOn: id } });
    };
    await this.write(id, old.text, { begin: (signal) => service.completed(asked, said, signal), takeBack });
    const { storedId } = chat;
    if (!storedId || chat.state.tree.turns[id] === undefined || chat.state.tree.turns[id] === old) return;
    const itemId = await placed(storedId, pathTo(chat.state.tree, id)).catch(() => ""); // the next turn tries again
    if (itemId && chat.storedId === storedId) chat.set({ tree: changed(chat.state.tree, id, { itemId }) });
  }

  /** Ends the answer with what it has, and the chat goes on at once. */
  stop(): void {
    const { running, chat } = this;
    if (running === null || running.isStopped) return;
    running.isStopped = true;
    if (!running.isTaken || !chat.storedId || running.isGoingOn) return running.abort.abort();
    const ending = running.responseId ? service.cancelled(running.responseId) : ended(chat.storedId);
    void ending.catch(() => undefined).then(() => setTimeout(() => running.abort.abort(), STOPPED_MS));
    const one = chat.state.tree.turns[chat.state.writing];
    if (!one?.text && !one?.thought) return; // its end says whether there is anything
    chat.set({ writing: "", tree: changed(chat.state.tree, one.id, { status: "stopped", endedAtMs: Date.now() }) });
  }

  /** Follows an answer that the service is generating in this conversation, and that this tab has not started. */
  async resume(responseId: string): Promise<void> {
    const { chat } = this;
    const { id, tree: before } = chat.state;
    const place = await Promise.all([service.placeOf(responseId), questionOf(responseId)]).catch(() => null);
    if (id !== chat.state.id) return;
    chat.set({ isAnswered: false });
    if (place === null || chat.state.writing) return;
    if (before !== chat.state.tree) return chat.readAgain(id); // which may have the answer by now
    const [found, question] = place;
    let { tree } = chat.state;
    const last = path(tree).at(-1)?.id ?? "";
    const parent = found === "root" ? "" : (Object.values(tree.turns).find((one) => one.itemId === found)?.id ?? last);
    let asked = (tree.children[parent] ?? []).find((each) => isSame(saidOf(tree.turns[each]!), question));
    if (asked === undefined) {
      asked = newId();
      tree = added(tree, turn({ id: asked, parent, role: "user", text: question.content, ...(question.files && { files: question.files }) }));
    }
    const answer = turn({ id: newId(), parent: asked, role: "assistant", model: chat.state.model });
    chat.set({ tree: added({ ...tree, chosen: { ...tree.chosen, [parent]: asked } }, answer) });
    await this.write(answer.id, "", { begin: (signal) => service.resumed(responseId, signal) }, true);
  }

  /** Stops following an answer. One that the service stores continues. */
  leave(): void {
    this.running?.abort.abort();
    this.running = null;
    this.chat.flush();
    this.chat.set({ writing: "", refused: null });
  }

  /** Streams an answer into its turn, after the text that it already has. */
  private async write(id: string, before: string, asking: Asking, isResumed = false): Promise<void> {
    const { chat } = this;
    this.running?.abort.abort(); // one that was stopped, and is still followed
    const running: Running = { abort: new AbortController(), isStopped: false, isGoingOn: before !== "", isTaken: isResumed, responseId: "" };
    this.running = running;
    const { signal } = running.abort;
    let text = before;
    let thought = "";
    let drawnAtMs = 0;
    const isStored = chat.isStored;
    const isShown = () => chat.state.tree.turns[id] !== undefined && this.running === running;
    const update = (values: Partial<Turn>) => {
      if (isShown()) chat.set({ tree: changed(chat.state.tree, id, values) });
    };
    const { [id]: old } = chat.state.tree.turns;
    if (old === undefined) return;
    const { failure: _, usage: __, itemId: ___, progress: ____, cutBy: _____, isThoughtCut: ______, ...kept } = old;
    const fresh: Turn = { ...kept, status: "waiting", askedAtMs: Date.now(), firstAtMs: 0, thoughtUntilMs: 0, endedAtMs: 0 };
    const thoughtBefore = old.thought ? `${old.thought}\n\n` : "";
    const texts = () => ({ text, ...(thought ? { thought: thoughtBefore + thought } : {}) });
    chat.set({ writing: id, refused: null, tree: { ...chat.state.tree, turns: { ...chat.state.tree.turns, [id]: fresh } } });
    let status: Turn["status"] = "done";
    try {
      if (!chat.connection.isOpen) await chat.connection.there(signal);
      const there = (given: AbortSignal) => chat.connection.there(given);
      for await (const piece of service.whenThere(asking.begin, signal, there, asking.again)) {
        if (piece.kind === "admitted") {
          running.isTaken = true;
          chat.unsent("");
          if (text === before && !thought) update({ status: "reading", ...(fresh.model ? {} : { model: chat.state.model }) });
          chat.set({ isReachable: true });
          chat.save();
        } else if (piece.kind === "progress") update({ progress: piece.progress });
        else if (piece.kind === "lost") chat.connection.lost();
        else if (piece.kind === "response") {
          running.responseId = piece.id;
          if (running.isStopped) void service.cancelled(piece.id).catch(() => undefined);
          if (isStored && !isResumed) chat.others.postMessage(chat.state.id);
        } else if (piece.kind === "item") update({ itemId: piece.id });
        else if (piece.kind === "usage") update({ usage: piece.usage });
        else if (piece.kind === "sources") update({ sources: piece.sources });
        else if (piece.kind === "context") update({ context: piece.context });
        else if (piece.kind === "thoughtCut") update({ isThoughtCut: true });
        else if (piece.kind === "end") {
          status = piece.isStopped ? "stopped" : piece.cut ? "cut" : "done";
          if (piece.cut) update({ cutBy: piece.cut });
        } else {
          const isFirst = text === before && !thought;
          if (isFirst) this.woken(chat.state.tree.turns[id]?.model ?? "");
          const nowMs = Date.now();
          if (isFirst && !isResumed) update({ firstAtMs: nowMs });
          if (piece.kind === "text" && text === before && thought && !isResumed) update({ thoughtUntilMs: nowMs });
          if (piece.kind === "thought") thought += piece.text;
          else text = piece.kind === "whole" ? before + piece.text : text + piece.text;
          if (piece.kind === "whole") thought = piece.thought;
          if (nowMs - drawnAtMs < REDRAW_MS) continue;
          update({ ...texts(), status: running.isStopped ? "stopped" : "writing" });
          drawnAtMs = nowMs;
          chat.save();
        }
      }
      update({ ...texts(), status, endedAtMs: Date.now() });
      chat.set({ isReachable: true });
    } catch (error) {
      const failure = error instanceof service.AnswerFailure ? error : null;
      const isRefused = !running.isTaken && (signal.aborted || failure !== null);
      if (isRefused) asking.forget?.();
      if (isRefused && asking.takeBack && isShown()) {
        chat.set({ writing: "" });
        asking.takeBack(signal.aborted ? null : failure);
        if (failure) this.told(failure);
      } else {
        update(texts());
        if (signal.aborted) update({ status: "stopped", endedAtMs: Date.now() });
        else this.fail(update, error);
      }
    } finally {
      const conversation = isShown() ? chat.storedId : "";
      if (this.running === running) {
        this.running = null;
        chat.unsent("");
        if (chat.state.writing === id || !chat.state.tree.turns[chat.state.writing]) chat.set({ writing: "" });
      }
      chat.flush();
      if (conversation) chat.others.postMessage(conversation);
      void chat.conversations.list();
    }
  }

  /** Answers a question in a conversation that the service stores, or will store from now on. */
  private async *keptTurn(id: string, turns: Turn[], asked: service.Asked, signal: AbortSignal, made: (id: string) => void): Pieces {
    let conversation = id;
    const { chat } = this;
    if (!id.startsWith(STORED)) {
      conversation = await created(asMetadata(chat.state) ?? {});
      made(conversation);
      signal.throwIfAborted();
      chat.set({ id: conversation });
      name(conversation);
    }
    yield* turnOf(conversation, turns, asked, signal);
  }

  /** think: instead of the chat's own. */
  private asked(model: string, think = this.chat.state.knobs.think): service.Asked {
    const { knobs, models } = this.chat.state;
    const served = this.served(model);
    const thinking = models.find((one) => one.id === served)?.thinking;
    const canBe = think !== "off" || thinking?.switch;
    return { model: served, knobs: { ...knobs, think: canBe ? think : null }, seed: knobs.seed ?? newSeed(), shortTokens: thinking?.short_tokens ?? null };
  }

  /** The model, or the chat's if that one is not there any more. */
  private served(model: string): string {
    return this.chat.state.models.some((one) => one.id === model) ? model : this.chat.state.model;
  }

  /** Notes that a model has answered, and so does not sleep. */
  private woken(model: string): void {
    const { models } = this.chat.state;
    if (!models.some((one) => one.id === model && one.asleep)) return;
    this.chat.set({ models: models.map((one) => (one.id === model ? { ...one, asleep: false } : one)) });
  }

  private fail(update: (values: Partial<Turn>) => void, error: unknown): void {
    const failure = error instanceof service.AnswerFailure ? error : null;
    update({ status: "failed", endedAtMs: Date.now(), failure: failureOf(failure) });
    if (failure?.status !== 200) update({ itemId: "" }); // the service has told nothing of what it has
    this.told(failure);
  }

  /** Does what a failure means for the page. */
  private told(failure: service.AnswerFailure | null): void {
    const { chat } = this;
    if (chat.isOver) return;
    if (failure && service.isLoggedOut(failure)) chat.set({ needsKey: true });
    else if (failure === null || failure.status === 200 || failure.status === 0 || failure.status >= 500) void chat.connection.look();
    if (failure?.code === "model_not_found") void chat.connection.look();
  }
}

function failureOf(failure: service.AnswerFailure | null): Failure {
  const { message = "Something went wrong on this page.", requestId = "", retryAfterS = null } = failure ?? {};
  if (retryAfterS === null) return { message, requestId };
  return { message: withoutWait(message), requestId, retryAtMs: Date.now() + 1000 * retryAfterS };
}
