// The user's sessions; ends one or all.
import { useEffect, useState } from "preact/hooks";

import { useAction } from "../common/action";
import { call } from "../common/api";
import { announce, believe } from "../common/session";
import { counted, moment } from "../common/numbers";
import { Told } from "../common/told";

interface Ended {
  sessions: number;
  saved_pages: number;
  unsaved_pages: number;
}

interface Session {
  id: string;
  created_at: number;
  seen_at: number;
  current: boolean;
  /** Where it was begun; null: unknown. */
  device: string | null;
}

/** onEnd: called when the user is signed out, to hide all of the user's data. */
export function Sessions({ onEnd }: { onEnd: () => void }) {
  const [hasEnded, setEnded] = useState(false);
  const [sessions, setSessions] = useState<Session[]>([]);
  const { isBusy, outcome, run, dismiss } = useAction();

  async function look() {
    setSessions((await call<{ data: Session[] }>("GET", "/v1/auth/sessions")).data);
  }
  useEffect(() => {
    void run(async () => {
      await look();
      return "";
    });
  }, []);

  const end = (session: Session) =>
    run(async () => {
      await call("DELETE", `/v1/auth/sessions/${encodeURIComponent(session.id)}`);
      await look();
      return "That session has ended.";
    });

  const leave = (everywhere: boolean) =>
    run(async () => {
      const ended = await call<Ended>("POST", "/v1/auth/logout", { everywhere });
      believe("");
      announce("");
      sessionStorage.clear();
      onEnd();
      setEnded(true);
      const unsaved = ended.unsaved_pages ? ` ${counted(ended.unsaved_pages, "page")} could not be saved.` : "";
      return `${counted(ended.sessions, "session")} ended, ${counted(ended.saved_pages, "page")} saved.${unsaved}`;
    });

  return (
    <section class="card" aria-labelledby="sessions">
      <h2 id="sessions">Sessions</h2>
      <Told outcome={outcome} dismiss={dismiss} />
      {!hasEnded && (
        <ul>
          {sessions.map((session) => (
            <li class="row apart" key={session.id}>
              <span>
                {session.device ?? "Unknown device"}
                {session.current && <b> (this one)</b>}
                <br />
                <span class="quiet small">Since {moment(session.created_at)}, last used {moment(session.seen_at)}</span>
              </span>
              {!session.current && (
                <button class="bad" aria-disabled={isBusy} onClick={() => end(session)} aria-label={`End the session of ${session.device ?? "an unknown device"} since ${moment(session.created_at)}`}>
                  End
                </button>
              )}
            </li>
          ))}
        </ul>
      )}
      {hasEnded ? (
        <a href="/login">Log in again</a>
      ) : (
        <div class="row">
          <button aria-disabled={isBusy} onClick={() => leave(false)}>Sign out</button>
          <button class="bad" aria-disabled={isBusy} onClick={() => leave(true)}>Sign out everywhere</button>
        </div>
      )}
    </section>
  );
}
