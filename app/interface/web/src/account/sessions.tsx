// The end of this session, or of all the user's.
import { useState } from "preact/hooks";

import { useAction } from "../common/action";
import { call } from "../common/api";
import { counted } from "../common/numbers";
import { Told } from "../common/told";

interface Ended {
  sessions: number;
  saved_pages: number;
  unsaved_pages: number;
}

export function Sessions() {
  const [hasEnded, setEnded] = useState(false);
  const { isBusy, outcome, run } = useAction();

  const leave = (everywhere: boolean) =>
    run(async () => {
      const ended = await call<Ended>("POST", "/v1/auth/logout", { everywhere });
      setEnded(true);
      const unsaved = ended.unsaved_pages ? ` ${counted(ended.unsaved_pages, "page")} could not be saved.` : "";
      return `${counted(ended.sessions, "session")} ended, ${counted(ended.saved_pages, "page")} saved.${unsaved}`;
    });

  return (
    <section class="card" aria-labelledby="sessions">
      <h2 id="sessions">Sessions</h2>
      <Told outcome={outcome} />
      {hasEnded ? (
        <a href="/login">Log in again</a>
      ) : (
        <div class="row">
          <button disabled={isBusy} onClick={() => leave(false)}>Sign out</button>
          <button class="bad" disabled={isBusy} onClick={() => leave(true)}>Sign out everywhere</button>
        </div>
      )}
    </section>
  );
}
