// An open collection: its documents, files to add, its name, with whom it is shared, its end.
import { useEffect, useRef, useState } from "preact/hooks";

import { useAction } from "../common/action";
import { call } from "../common/api";
import { Confirm } from "../common/confirm";
import { counted } from "../common/numbers";
import { poll } from "../common/poll";
import { Told } from "../common/told";
import { type Collection, type Document, add, at, documentsOf, meant, nameOf, remove, replace, sizeOf, stateOf } from "./documents";
import { Members } from "./members";

const LOOK_AGAIN_MS = 1000;

interface Props {
  collection: Collection;
  isAdmin: boolean;
  /** Called when its name or size may be another one. */
  changed: () => void;
  gone: () => void;
}

export function Opened({ collection, isAdmin, changed, gone }: Props) {
  const { id, name, shared } = collection;
  const [documents, setDocuments] = useState<Document[] | null>(null);
  const [adding, setAdding] = useState<{ done: number; of: number; name: string } | null>(null);
  const [asking, setAsking] = useState("");
  const { isBusy, outcome, run, dismiss } = useAction();

  async function look() {
    let found = await documentsOf(id);
    if (!shared && (await replace(id, found))) found = await documentsOf(id);
    setDocuments(found);
  }
  useEffect(() => {
    // Not as an action, during which files that somebody chooses would not be added.
    void look().catch((error: unknown) => run(() => Promise.reject(error)));
  }, []);
  const unread = documents?.filter((one) => one.status === "in_progress").length ?? 0;
  useEffect(() => changed(), [unread]);
  useEffect(() => (unread ? poll(look, LOOK_AGAIN_MS, () => undefined) : undefined), [unread > 0]);

  const choose = (input: HTMLInputElement) => {
    const files = meant([...(input.files ?? [])]);
    input.value = ""; // so that the same file can be chosen again
    void run(async () => {
      const tell = (done: number, now: string) => setAdding({ done, of: files.length, name: now });
      try {
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
      await look();
      changed();
      return `Removed: ${nameOf(one)}.`;
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

  const failed = documents?.filter((one) => one.status === "failed").length ?? 0;
  return (
    <div class="opened">
      {documents && <p class="small">{sizeOf(documents)}{failed > 0 && `, ${failed} could not be read`}</p>}
      <div role="status" class="small">
        {adding ? `Adding ${adding.done + 1} of ${adding.of}: ${adding.name}` : unread > 0 && `${counted(unread, "document")} being read`}
      </div>
      {adding && <progress aria-label="Files added" max={adding.of} value={adding.done} />}
      <ul>
        {documents?.map((one) => (
          <li class="row apart" key={one.id}>
            <span>
              <span dir="auto">{nameOf(one)}</span>
              <br />
              <span class={one.status === "failed" ? "bad small" : "quiet small"}>{stateOf(one)}</span>
            </span>
            {shared ? null : asking === one.id ? (
              <Confirm of={one.id} label={`Remove ${nameOf(one)}`} yes="Remove it" no="Keep it" isBusy={isBusy} onYes={() => void takeOut(one)} onNo={() => setAsking("")}>
                Its passages and the file are deleted from this service.
              </Confirm>
            ) : (
              <button class="bad" data-id={one.id} aria-label={`Remove ${nameOf(one)}`} aria-disabled={isBusy} onClick={() => setAsking(one.id)}>Remove…</button>
            )}
          </li>
        ))}
      </ul>
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
              This destroys the key of the collection, and deletes its documents and their files. Nobody can open them again, also not from a copy of the disk.
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
