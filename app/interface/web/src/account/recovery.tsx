// Creates a new recovery code, for users who have lost theirs.
import { useState } from "preact/hooks";

import { useAction } from "../common/action";
import { call } from "../common/api";
import { Told } from "../common/told";

export function Recovery({ name }: { name: string }) {
  const [code, setCode] = useState("");
  const { isBusy, outcome, run, dismiss } = useAction();

  function make(event: SubmitEvent) {
    event.preventDefault();
    const form = event.currentTarget as HTMLFormElement;
    const password = String(new FormData(form).get("password"));
    setCode("");
    void run(async () => {
      setCode((await call<{ recovery_code: string }>("POST", "/v1/auth/recovery", { password })).recovery_code);
      form.reset();
      return "";
    });
  }

  return (
    <section class="card" aria-labelledby="recovery">
      <h2 id="recovery">Recovery code</h2>
      <p class="quiet small">It keeps your chats if you forget your password. A new one takes the place of one that is lost.</p>
      {code && (
        <div class="told">
          <p>Write it down now: it is shown this once, and the one before opens nothing any more.</p>
          <p><code id="code">{code}</code></p>
          <button class="dismiss" aria-label="Dismiss the code" onClick={() => setCode("")}>×</button>
        </div>
      )}
      <form onSubmit={make}>
        <input hidden name="username" autocomplete="username" value={name} readOnly />
        <label>Your password<input name="password" type="password" autocomplete="current-password" required /></label>
        <div><button aria-disabled={isBusy}>Make a new code</button></div>
      </form>
      <Told outcome={outcome} dismiss={dismiss} />
    </section>
  );
}
