// The user's saved KV pages: their size, saving them now, destroying their keys.
import { useEffect, useState } from "preact/hooks";

import { useAction } from "../common/action";
import { ApiFailure, call } from "../common/api";
import { Confirm } from "../common/confirm";
import { bytes, counted } from "../common/numbers";
import { Told } from "../common/told";

interface Use {
  bytes: number;
  quota_bytes: number;
  pages: number;
}

export function Memory() {
  const [use, setUse] = useState<Use | null>(null);
  const [isKept, setKept] = useState(true);
  const [isAsking, setAsking] = useState(false);
  const { isBusy, outcome, run, dismiss } = useAction();

  async function look() {
    setUse(await call<Use>("GET", "/v1/memory"));
  }
  useEffect(() => {
    void run(async () => {
      await look().catch((error: unknown) => {
        if (!(error instanceof ApiFailure && error.status === 404)) throw error;
        setKept(false); // this service saves no pages
      });
      return "";
    });
  }, []);

  const save = () =>
    run(async () => {
      const saved = await call<{ saved_pages: number; unsaved_pages: number }>("POST", "/v1/memory/save");
      await look();
      const unsaved = saved.unsaved_pages ? ` ${counted(saved.unsaved_pages, "page")} could not be saved.` : "";
      return `${counted(saved.saved_pages, "page")} saved.${unsaved}`;
    });
  const forget = () =>
    run(async () => {
      setAsking(false);
      const gone = await call<{ conversations: number; unacknowledged: number }>("DELETE", "/v1/memory");
      await look();
      const rest = gone.unacknowledged ? ` ${counted(gone.unacknowledged, "worker")} did not answer.` : "";
      return `Forgotten: the keys of ${counted(gone.conversations, "conversation")} are destroyed.${rest}`;
    });

  if (!isKept) return null;
  return (
    <section class="card" aria-labelledby="memory">
      <h2 id="memory">Memory</h2>
      {use && (
        <div>
          <progress aria-labelledby="memory" max={Math.max(1, use.quota_bytes)} value={use.bytes} />
          <p>
            {bytes(use.bytes)} of {bytes(use.quota_bytes)}, {counted(use.pages, "page")}
          </p>
        </div>
      )}
      <p class="quiet small">What the model has read of your chats, encrypted with keys of yours, so that a chat goes on at once.</p>
      {isAsking ? (
        <Confirm of="forget" label="Forget all" yes="Destroy the keys" no="Keep them" isBusy={isBusy} onYes={forget} onNo={() => setAsking(false)}>
          This destroys the keys of all your saved pages. Nobody can open them again, also not from a copy of the disk. Your next
          messages are read anew, which takes longer once.
        </Confirm>
      ) : (
        <div class="row">
          <button aria-disabled={isBusy} onClick={save}>Save now</button>
          <button class="bad" data-id="forget" aria-disabled={isBusy} onClick={() => setAsking(true)}>Forget all…</button>
        </div>
      )}
      <Told outcome={outcome} dismiss={dismiss} />
    </section>
  );
}
