// The page /login: name and password for a session, kept in a cookie that no script can read. A user whose password was
// set by an administrator chooses another one here, and is shown the recovery code.
import { render } from "preact";
import { useState } from "preact/hooks";

import "../common/style.css";
import { call, inWords } from "../common/api";
import { nextPath } from "../common/places";
import { announce } from "../common/session";
import { Choose, Recovery } from "./choose";

interface Session {
  user_id: string;
  name: string;
  must_choose_password: boolean;
  can_recover: boolean;
}

function Login() {
  const [failure, setFailure] = useState("");
  const [isBusy, setBusy] = useState(false);
  const [first, setFirst] = useState<{ session: Session; password: string } | null>(null);
  const [code, setCode] = useState("");
  const hasEnded = new URLSearchParams(location.search).get("ended") === "yes";
  const go = () => location.assign(nextPath(location.search, location.origin));

  async function submit(event: SubmitEvent) {
    event.preventDefault();
    if (isBusy) return;
    const form = event.currentTarget as HTMLFormElement;
    const entered = new FormData(form);
    const password = String(entered.get("password"));
    setFailure("");
    setBusy(true);
    try {
      const session = await call<Session>("POST", "/v1/auth/login", { name: String(entered.get("name")), password, cookie: true });
      sessionStorage.removeItem("redoubt.key"); // a guest's, which would be sent instead of the session
      announce(session.user_id);
      if (session.must_choose_password) setFirst({ session, password });
      else go();
    } catch (error) {
      setFailure(inWords(error));
      setBusy(false);
      form.querySelector<HTMLInputElement>("#password")?.select();
    }
  }

  return (
    <main class="login">
      <div>
        <h1>Redoubt</h1>
        <p class="quiet">What you write stays between this browser and this service.</p>
      </div>
      {code && <Recovery code={code} onKept={go} />}
      {first && !code && (
        <Choose name={first.session.name} given={first.password} canRecover={first.session.can_recover} onChosen={setCode} />
      )}
      {!first && (
        <>
          {hasEnded && <p role="status" class="told">You were signed out. Log in.</p>}
          <form class="card" method="post" onSubmit={submit}>
            <label>
              Name
              <input id="name" name="name" autocomplete="username" autocapitalize="none" spellcheck={false} required autofocus />
            </label>
            <label>
              Password
              <input id="password" name="password" type="password" autocomplete="current-password" required />
            </label>
            <div role="alert">{failure && <p class="told failed">{failure}</p>}</div>
            <button class="main" aria-disabled={isBusy}>
              {isBusy ? "Logging in…" : "Log in"}
            </button>
          </form>
        </>
      )}
    </main>
  );
}

render(<Login />, document.getElementById("page")!);
