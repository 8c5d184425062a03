// The page /account: the user, saved KV pages, conversations, collections, API keys, password, recovery code and sessions.
import { render } from "preact";
import { useEffect, useState } from "preact/hooks";

import "../common/style.css";
import { ApiFailure, call } from "../common/api";
import { keepFocus } from "../common/focus";
import { believe, leave, own, watch } from "../common/session";
import { Collections } from "./collections";
import { Conversations } from "./conversations";
import { Keys } from "./keys";
import { Limits } from "./limits";
import { Memory } from "./memory";
import { Password } from "./password";
import { Recovery } from "./recovery";
import { Sessions } from "./sessions";

interface Session {
  user_id: string;
  name: string;
  role: "user" | "admin";
}

function Account() {
  const [session, setSession] = useState<Session | null>(null);
  const [failure, setFailure] = useState("");
  const [hasEnded, setEnded] = useState(false);

  useEffect(() => {
    const isHere = (session: Session) => {
      believe(session.user_id);
      own(sessionStorage);
      watch(() => leave("/account"));
      setSession(session);
    };
    call<Session>("GET", "/v1/auth/session").then(isHere, (error: unknown) => {
      if (error instanceof ApiFailure && error.status === 401) location.replace("/login?next=/account");
      else setFailure("The service is not available. Reload this page in a moment.");
    });
  }, []);

  if (failure) return <main class="account"><h1>Account</h1><p role="alert" class="told failed">{failure}</p></main>;
  if (session === null) return <main class="account"><h1>Account</h1><p class="quiet">Loading…</p></main>;
  return (
    <main class="account">
      <nav class="row apart"><a class="brand" href="/">Redoubt</a><a href="/">Back to the chat</a></nav>
      <div>
        <h1>{session.name}</h1>
        <p class="quiet">
          {session.role === "admin" ? <>Administrator: <a href="/operator">the operator's page</a></> : "User"}
        </p>
      </div>
      {!hasEnded && (
        <>
          <Memory />
          <Conversations />
          <Collections isAdmin={session.role === "admin"} />
          <Keys />
          <Password name={session.name} />
          <Recovery name={session.name} />
          <Limits />
        </>
      )}
      <Sessions onEnd={() => setEnded(true)} />
    </main>
  );
}

const page = document.getElementById("page")!;
render(<Account />, page);
keepFocus(page, () => null);
