// The files of the draft above the message, and what they cost.
import { useEffect, useRef } from "preact/hooks";

import { duration } from "../common/words";
import type { Chat } from "./chat";
import { FileButton, sizeOf } from "./chips";
import { Icon } from "./icons";
import { AROUND_TOKENS, USUAL_CHARS } from "./meter";
import type { DraftFile, State } from "./state";
import { path } from "./tree";

export function ClipButton({ chat, disabled }: { chat: Chat; disabled: boolean }) {
  const input = useRef<HTMLInputElement>(null);
  return (
    <>
      <input
        type="file" multiple hidden ref={input} aria-label="Files to attach"
        onChange={(event) => {
          chat.files.add([...(event.currentTarget.files ?? [])]);
          event.currentTarget.value = ""; // so that the same file can be chosen again
        }}
      />
      <button type="button" class="bare clip" aria-label="Attach files" title="Attach files" disabled={disabled} onClick={() => input.current?.click()}>
        <Icon name="clip" />
      </button>
    </>
  );
}

export function Attaching({ chat }: { chat: Chat }) {
  const { files, model } = chat.state;
  useEffect(() => chat.files.recount(), [files, model]);
  const cost = costOf(chat.state);
  return (
    <>
      <div class="unseen" role="status">{files.map(spoken).filter(Boolean).join(" ")}</div>
      {files.length > 0 && (
        <div class="attaching">
          <ul class="files" aria-label="Attached files">
            {files.map((one) => <DraftChip key={one.id} chat={chat} file={one} />)}
          </ul>
          {cost.text && <p class={cost.isTooLong ? "small bad" : "small quiet"} id="cost">{cost.text}</p>}
        </div>
      )}
    </>
  );
}

function DraftChip({ chat, file }: { chat: Chat; file: DraftFile }) {
  const { id, name, status, error, notes, pastedAt } = file;
  return (
    <li class={status === "failed" ? "chip failed" : "chip"} aria-busy={status === "reading"}>
      <div class="row">
        {status === "ready" ? (
          <FileButton file={file} view={(one) => chat.set({ viewed: one })} />
        ) : (
          <span class="file">
            <Icon name="file" />
            <span><b dir="auto">{name}</b> {status === "reading" && <span class="quiet small">Reading…</span>}</span>
          </span>
        )}
        {pastedAt !== undefined && status !== "reading" && <button type="button" onClick={() => void chat.files.asText(id)}>Paste as text</button>}
        {status === "failed" && file.mayRetry && <button type="button" onClick={() => chat.files.again(id)}>Retry</button>}
        <button type="button" class="bare" aria-label={`Remove ${name}`} title="Remove" onClick={() => chat.files.remove(id)}><Icon name="close" /></button>
      </div>
      {error && <p class="small">{error}</p>}
      {notes.map((one) => <p class="note small">{one}</p>)}
    </li>
  );
}

/** What a screen reader says of a file when it is read. */
function spoken(file: DraftFile): string {
  if (file.status === "reading") return `Reading ${file.name}.`;
  if (file.status === "failed") return `${file.name}: ${file.error}`;
  return [`${file.name} is attached`, sizeOf(file)].filter(Boolean).join(", ") + [".", ...file.notes].join(" ");
}

/** The seconds in which files are read after one another: attention grows with the square of all their tokens. null: unknown. */
function together(files: DraftFile[]): number | null {
  let [rest, root] = [0, 0];
  for (const { expectedS, attentionS } of files) {
    if (expectedS === null) return null;
    rest += expectedS - (attentionS ?? 0);
    root += Math.sqrt(attentionS ?? 0);
  }
  return rest + root ** 2;
}

/** What the draft takes of the context, and how long it is read; empty: nothing is known. */
export function costOf({ files, draft, tree, models, model }: State): { text: string; isTooLong: boolean } {
  if (files.some((one) => one.status === "failed")) return { text: "Remove what could not be read, then send.", isTooLong: false };
  const ready = files.filter((one) => one.tokens !== null && one.status === "ready");
  const last = path(tree).filter((one) => one.usage).at(-1);
  const size = ready[0]?.contextTokens || models.find((one) => one.id === model)?.max_context_tokens;
  if (!ready.length || ready.length < files.length || !size) return { text: "", isTooLong: false };
  const question = draft.trim() ? Math.ceil(draft.length / USUAL_CHARS) + AROUND_TOKENS : 0;
  const alone = ready.reduce((sum, one) => sum + (one.tokens ?? 0), question);
  const all = alone + (last?.usage ? last.usage.promptTokens + last.usage.answerTokens : 0);
  const number = (tokens: number) => tokens.toLocaleString("en");
  if (alone >= size) {
    const text = `Too long for this model: ${number(alone)} tokens, and its context has ${number(size)}. Remove a file, or choose a model with a longer context.`;
    return { text, isTooLong: true };
  }
  const seconds = together(ready);
  const time = seconds === null ? "" : seconds < 1 ? " Read in less than a second." : ` Reading takes up to ${duration(seconds)} here.`;
  const left = size - alone;
  if (left < size / 8) return { text: `Fits, but leaves only ${number(left)} of ${number(size)} tokens for the answer.${time}`, isTooLong: false };
  const fits = all > size ? "Fits when the oldest turns are left out" : "Fits";
  return { text: `${fits}: ${number(Math.min(all, size))} of ${number(size)} tokens.${time}`, isTooLong: false };
}
