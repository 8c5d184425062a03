// The files that are attached to the draft: read by the service, one after the other, and kept in the tab with the draft.
// Knows no page.
import * as service from "./service";
import { type DraftFile, type State, newId, parsed } from "./state";
import type { Attached } from "./tree";

const KEY = "redoubt.files";
/** A pasted text that is longer becomes a file. */
export const MOST_PASTED = 4000;
/** How often a file is sent again to a service that reads too many. */
const ATTEMPTS = 6;
const BUSY_S = 2;
const TOO_LARGE = "This file is too large to be read here. Attach the part that matters.";

/** A file as the service reads it. */
interface Read {
  filename: string;
  pages: number | null;
  notes: string[];
  text: string;
  tokens: number;
  context_tokens: number;
  expected_s: number | null;
  /** What of it is attention's. */
  attention_s: number | null;
}

/** The chat, as far as its files need it. */
interface Open {
  readonly state: State;
  readonly storage: Storage;
  readonly isOver: boolean;
  /** Resolves when it is known who asks. */
  readonly known: Promise<void>;
  set(values: Partial<State>): void;
  draft(text: string): void;
  loggedOut(): void;
}

export class Files {
  /** What is read again after a failure. */
  private readonly sources = new Map<string, File>();
  private readonly aborts = new Map<string, AbortController>();
  /** Resolves when all files so far are read. */
  private reading: Promise<void> = Promise.resolve();
  /** The files of a question that the service has not taken yet. */
  private pending: DraftFile[] = [];

  constructor(private readonly chat: Open) {}

  /** The files that are kept with the draft. What could not be kept is told. */
  left(): Pick<State, "files" | "notice"> {
    const kept = (parsed(this.chat.storage.getItem(KEY)) ?? []) as DraftFile[];
    const lost = kept.filter((one) => one.status !== "ready").map((one) => one.name);
    const files = kept.filter((one) => one.status === "ready");
    if (lost.length) this.chat.storage.setItem(KEY, JSON.stringify(files));
    return { files, notice: lost.length ? `Not kept with your draft: ${lost.join(", ")}. Attach again what you need.` : "" };
  }

  /** Reads files and attaches them. */
  add(files: File[]): void {
    for (const file of files) this.begin(file, {});
  }

  /** Attaches a pasted text as a file. at: where it would have been in the draft. */
  paste(text: string, at: number): void {
    const taken = this.chat.state.files.filter((one) => one.pastedAt !== undefined).length;
    const name = taken ? `Pasted text ${taken + 1}.txt` : "Pasted text.txt";
    this.begin(new File([text], name, { type: "text/plain" }), { pastedAt: at });
  }

  /** Puts a pasted text into the draft instead. */
  async asText(id: string): Promise<void> {
    const one = this.chat.state.files.find((each) => each.id === id);
    const text = (await this.sources.get(id)?.text()) ?? one?.text;
    if (one === undefined || text === undefined) return;
    this.remove(id);
    const { draft } = this.chat.state;
    const at = Math.min(one.pastedAt ?? draft.length, draft.length);
    this.chat.draft(draft.slice(0, at) + text + draft.slice(at));
  }

  again(id: string): void {
    this.change(id, { status: "reading", error: "" });
    this.reading = this.reading.then(() => this.read(id));
  }

  remove(id: string): void {
    this.aborts.get(id)?.abort();
    this.sources.delete(id);
    this.set(this.chat.state.files.filter((one) => one.id !== id));
  }

  /** Takes the files for a question; until it is `taken` they are kept as the draft's. */
  take(): Attached[] {
    const { files } = this.chat.state;
    for (const { id } of files) this.sources.delete(id);
    this.pending = files;
    this.set([]);
    return files.map(({ name, pages, text, notes, tokens }) => ({ name, pages, text, notes, tokens }));
  }

  /** Keeps the files of a question that is asked anew until it is `taken`. */
  hold(files: Attached[]): void {
    this.pending = files.map((one) => draftFile({ ...one, status: "ready" }));
  }

  /** Makes the files that were taken the draft's again. */
  giveBack(): void {
    const { pending } = this;
    this.pending = [];
    this.set([...pending, ...this.chat.state.files]);
  }

  /** The service has taken the question. */
  taken(): void {
    if (!this.pending.length) return;
    this.pending = [];
    this.keep();
  }

  /** Counts the tokens of files that were counted for another model. */
  recount(): void {
    const { files, model } = this.chat.state;
    for (const { id, name, text } of files.filter((one) => one.status === "ready" && one.model !== model && model)) {
      this.change(id, { model, tokens: null, expectedS: null, attentionS: null });
      const whole = new File([text], `${name}.txt`, { type: "text/plain" });
      void this.ask(whole, new AbortController().signal).then(
        ({ tokens, context_tokens, expected_s, attention_s }) => {
          const isAsked = this.chat.state.files.some((one) => one.id === id && one.model === model);
          if (isAsked) this.change(id, { tokens, contextTokens: context_tokens, expectedS: expected_s, attentionS: attention_s });
        },
        () => undefined, // the number is not shown then
      );
    }
  }

  private begin(file: File, values: Pick<DraftFile, "pastedAt">): void {
    const one = draftFile({ name: file.name, pages: null, text: "", status: "reading", ...values });
    this.sources.set(one.id, file);
    this.set([...this.chat.state.files, one]);
    this.reading = this.reading.then(() => this.read(one.id));
  }

  private async read(id: string): Promise<void> {
    await this.chat.known;
    const file = this.sources.get(id);
    if (file === undefined) return; // removed meanwhile
    const abort = new AbortController();
    this.aborts.set(id, abort);
    const { model } = this.chat.state;
    try {
      const { filename, pages, notes, text, tokens, context_tokens, expected_s, attention_s } = await this.ask(file, abort.signal);
      const counted = { tokens, contextTokens: context_tokens, expectedS: expected_s, attentionS: attention_s, model: model || this.chat.state.model };
      this.change(id, { name: filename, pages, notes, text, ...counted, status: "ready" });
    } catch (error) {
      if (abort.signal.aborted) return;
      if (service.isLoggedOut(error)) this.chat.loggedOut();
      const failure = error instanceof service.AnswerFailure ? error : null;
      const message = failure?.status === 413 ? TOO_LARGE : (failure?.message ?? "It could not be read.");
      this.change(id, { status: "failed", error: message, mayRetry: failure !== null && isPassing(failure.status) });
    } finally {
      this.aborts.delete(id);
    }
  }

  private async ask(file: File, signal: AbortSignal): Promise<Read> {
    const form = new FormData();
    form.append("file", file, file.name);
    if (this.chat.state.model) form.append("model", this.chat.state.model);
    for (let attempt = 1; ; attempt += 1) {
      try {
        return await service.ask<Read>("POST", "/v1/documents", form, signal);
      } catch (error) {
        const isBusy = error instanceof service.AnswerFailure && error.status === 503;
        if (!isBusy || attempt === ATTEMPTS) throw error;
        await service.pause(1000 * (error.retryAfterS ?? BUSY_S), signal);
      }
    }
  }

  private change(id: string, values: Partial<DraftFile>): void {
    this.set(this.chat.state.files.map((one) => (one.id === id ? { ...one, ...values } : one)));
  }

  private set(files: DraftFile[]): void {
    this.chat.set({ files });
    this.keep();
  }

  /** Keeps the files in the tab; where there is no room their names, so that a reload can say what is lost. */
  private keep(): void {
    const { storage, isOver } = this.chat;
    if (isOver) return; // what is there is for the next login
    const all = [...this.pending, ...this.chat.state.files];
    storage.removeItem(KEY);
    if (!all.length) return;
    try {
      storage.setItem(KEY, JSON.stringify(all));
    } catch {
      const names = all.map(({ name }) => ({ name, status: "failed" }));
      try {
        storage.setItem(KEY, JSON.stringify(names));
      } catch {
        return; // then not even the names
      }
    }
  }
}

function draftFile({ notes, ...values }: Attached & Pick<DraftFile, "status" | "pastedAt">): DraftFile {
  return { id: newId(), error: "", contextTokens: 0, expectedS: null, attentionS: null, model: "", ...values, tokens: values.tokens ?? null, notes: notes ?? [] };
}

/** Whether a failure of that status may pass by itself. */
const isPassing = (status: number): boolean => status === 0 || status === 429 || status >= 500;
