// An open collection: its documents, files to add, its name, with whom it is shared, its end.
import { useEffect, useRef, useState } from "preact/hooks";

import { useAction } from "../common/action";
import { ApiFailure, call } from "../common/api";
import { Confirm } from "../common/confirm";
import { counted } from "../common/numbers";
import { poll } from "../common/poll";
import { Told } from "../common/told";
import {
  type Collection, type Document, type Shown, add, at, collectionOf, documentsOf, isSame, meant, more, nameOf, opened, remove, renewed, replace, sizeOf,
  stateOf, without,
} from "./documents";
import { Members } from "./members";

const LOOK_AGAIN_MS = 1000;

const isGone = (error: unknown): boolean => error instanceof ApiFailure && error.status === 404;

interface Props {
  collection: Collection;
  isAdmin: boolean;
  /** Called when its name or size may be another one. */
  changed: () => void;
  gone: () => void;
}

export function Opened({ collection, isAdmin, changed, gone }: Props) {
  const { id, name, shared } = collection;
  const [shown, setShown] = useState<Shown | null>(null);
  const [adding, setAdding] = useState<{ done: number; of: number; name: string } | null>(null);
  const [asking, setAsking] = useState("");
  const { isBusy, outcome, run, dismiss } = useAction();

  const latest = useRef<Shown | null>(null);
  /** Whether documents were added or read, which may replace older ones, also such that are not shown. */
  const mayReplace = useRef(false);
  const show = (now: Shown) => {
    latest.current = now;
    setShown(now);
  };
  /** What is shown, asked for again: anew if documents came or went, and otherwise the parts that were being read. */
  async function fresh(now: Collection): Promise<Shown> {
    const before = latest.current;
    if (before === null || before.counts.total !== now.file_counts.total) return opened(id);
    return renewed(id, before, now).catch((error: unknown) => {
      if (isGone(error)) return opened(id); // the last one before a part was taken out
      throw error;
    });
  }
  async function look() {
    let now = await fresh(await collectionOf(id));
    if (!shared && !now.counts.in_progress && (mayReplace.current || !now.hasMore)) {
      if (await replace(id, now.hasMore ? await documentsOf(id) : now.documents)) now = await opened(id);
      mayReplace.current = false;
    }
    show(now);
  }
  /** Asks how many are read, and for the documents only if that has changed. */
  async function follow() {
    const before = latest.current;
    const now = await collectionOf(id).catch((error: unknown) => {
      if (!isGone(error)) throw error;
      gone();
      return null;
    });
    if (now === null || before === null || isSame(before.counts, now.file_counts)) return;
    if (!now.file_counts.in_progress) return look();
    const after = await fresh(now);
    if (latest.current === before) show(after);
  }
  useEffect(() => {
    // Not as an action, during which files that somebody chooses would not be added.
    void look().catch((error: unknown) => run(() => Promise.reject(error)));
  }, []);
  const unread = shown?.counts.in_progress ?? 0;
  useEffect(() => {
    if (unread) mayReplace.current = true;
    changed();
  }, [unread]);
  useEffect(() => (unread ? poll(follow, LOOK_AGAIN_MS, () => undefined) : undefined), [unread > 0]);

  const choose = (input: HTMLInputElement) => {
    const files = meant([...(input.files ?? [])]);
    input.value = ""; // so that the same file can be chosen again
    void run(async () => {
      const tell = (done: number, now: string) => setAdding({ done, of: files.length, name: now });
      try {
        mayReplace.current = true;
        const failures = await add(id, files, tell);
        await look();
        return [`${counted(files.length - failures.length, "file")} added.`, ...failures].join(" ");
      } finally {
        setAdding(null);
      }
    });
  };
  const takeOut = (one: Document) =>
    run(async () => {
      await remove(id, one.id);
      setAsking("");
      const now = await collectionOf(id);
      if (latest.current) show(without(latest.current, one.id, now));
      changed();
      return `Removed: ${nameOf(one)}.`;
    });
  const showMore = () =>
    run(async () => {
      for (let before = latest.current; before !== null; before = latest.current) {
        const after = await more(id, before);
        if (latest.current !== before) continue; // it was asked for again meanwhile
        show(after);
        break;
      }
      return "";
    });
  function rename(event: SubmitEvent) {
    event.preventDefault();
    const wanted = String(new FormData(event.currentTarget as HTMLFormElement).get("name")).trim();
    void run(async () => {
      await call("POST", at(id), { name: wanted });
      changed();
      return `It is called ${wanted} now.`;
    });
  }
  const destroy = () =>
    run(async () => {
      await call("DELETE", `${at(id)}?with_files=true`);
      gone();
      return "";
    });

  const failed = shown?.counts.failed ?? 0;
  return (
    <div class="opened">
      {shown && <p class="small">{sizeOf(shown)}{failed > 0 && `, ${failed} could not be read`}</p>}
      <div role="status" class="small">
        {adding ? `Adding ${adding.done + 1} of ${adding.of}: ${adding.name}` : unread > 0 && `${counted(unread, "document")} being read`}
      </div>
      {adding && <progress aria-label="Files added" max={adding.of} value={adding.done} />}
      <ul>
        {shown?.documents.map((one) => (
          <li class="row apart" key={one.id}>
            <span>
              <span dir="auto">{nameOf(one)}</span>
              <br />
              <span class={one.status === "failed" ? "bad small" : "quiet small"}>{stateOf(one)}</span>
            </span>
            {shared ? null : asking === one.id ? (
              <Confirm of={one.id} label={`Remove ${nameOf(one)}`} yes="Remove it" no="Keep it" isBusy={isBusy} onYes={() => void takeOut(one)} onNo={() => setAsking("")}>
                Its passages and the file are deleted from this service, and their keys destroyed. What answers have cited of it stays in their chats.
              </Confirm>
            ) : (
              <button class="bad" data-id={one.id} aria-label={`Remove ${nameOf(one)}`} aria-disabled={isBusy} onClick={() => setAsking(one.id)}>Remove…</button>
            )}
          </li>
        ))}
      </ul>
      {shown?.hasMore && (
        <div><button aria-disabled={isBusy} onClick={() => void showMore()}>Show more</button></div>
      )}
      {shared ? (
        <Told outcome={outcome} dismiss={dismiss} />
      ) : (
        <>
          <div class="row">
            <Pick label="Add files" isBusy={isBusy} choose={choose} />
            <Pick label="Add a folder" isBusy={isBusy} choose={choose} isFolder />
          </div>
          <Told outcome={outcome} dismiss={dismiss} />
          <form onSubmit={rename}>
            <label>Name<input name="name" required maxLength={256} autocomplete="off" defaultValue={name} /></label>
            <div><button aria-disabled={isBusy}>Rename</button></div>
          </form>
          <Members id={id} isAdmin={isAdmin} />
          {asking === "delete" ? (
            <Confirm of="delete-collection" label={`Delete ${name || "Unnamed"}`} yes="Destroy its key" no="Keep it" isBusy={isBusy} onYes={() => void destroy()} onNo={() => setAsking("")}>
              This destroys the key of the collection and those of its files. From then on nobody can open them, also not with the disk. What answers have cited stays in
              their chats, and saved pages of documents that were read whole stay until you forget them.
            </Confirm>
          ) : (
            <div><button class="bad" data-id="delete-collection" aria-disabled={isBusy} onClick={() => setAsking("delete")}>Delete the collection…</button></div>
          )}
        </>
      )}
    </div>
  );
}

/** Preact's types do not know it. */
const FOLDER = { webkitdirectory: true };

function Pick({ label, isBusy, choose, isFolder = false }: { label: string; isBusy: boolean; choose: (input: HTMLInputElement) => void; isFolder?: boolean }) {
  const input = useRef<HTMLInputElement>(null);
  return (
    <>
      <input type="file" multiple hidden ref={input} aria-label={label} {...(isFolder && FOLDER)} onChange={(event) => choose(event.currentTarget)} />
      <button type="button" aria-disabled={isBusy} onClick={() => isBusy || input.current?.click()}>{label}…</button>
    </>
  );
}
