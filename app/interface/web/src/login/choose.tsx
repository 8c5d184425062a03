// The first login: replaces the administrator's password by the user's own, and shows the recovery code only to the user.
import { useState } from "preact/hooks";

import { useAction } from "../common/action";
import { Told as Different, call } from "../common/api";
import { Told } from "../common/told";

interface Asked {
  name: string;
  /** The password set by the administrator. */
  given: string;
  /** Whether a recovery code can open what was saved before. */
  canRecover: boolean;
  onChosen: (recoveryCode: string) => void;
}

export function Choose({ name, given, canRecover, onChosen }: Asked) {
  const [isLost, setLost] = useState(false);
  const { isBusy, outcome, run } = useAction();

  function choose(event: SubmitEvent) {
    event.preventDefault();
    const entered = new FormData(event.currentTarget as HTMLFormElement);
    const wanted = String(entered.get("new"));
    void run(async () => {
      if (String(entered.get("again")) !== wanted) throw new Different("These were two different passwords.");
      const kept = canRecover && !isLost ? { recovery_code: String(entered.get("code")) } : canRecover ? { lose_saved: true } : {};
      const body = { password: given, new_password: wanted, ...kept };
      onChosen((await call<{ recovery_code: string }>("POST", "/v1/auth/password", body)).recovery_code);
      return "";
    });
  }

  return (
    <form class="card" onSubmit={choose}>
      <h2>Choose your own password</h2>
      <p class="quiet small">An administrator knows the one that you were given. Yours opens your chats, and nobody else has it.</p>
      <input hidden name="username" autocomplete="username" value={name} readOnly />
      <label>New password<input name="new" type="password" autocomplete="new-password" minLength={12} required autofocus /></label>
      <label>Once more<input name="again" type="password" autocomplete="new-password" required /></label>
      {canRecover && (
        <>
          <label>Recovery code<input name="code" autocomplete="off" spellcheck={false} required={!isLost} disabled={isLost} /></label>
          <label class="check">
            <input type="checkbox" checked={isLost} onChange={(event) => setLost(event.currentTarget.checked)} />
            I have lost the code: delete all my chats
          </label>
        </>
      )}
      <Told outcome={outcome} />
      <button class="main" aria-disabled={isBusy}>Choose it</button>
    </form>
  );
}

export function Recovery({ code, onKept }: { code: string; onKept: () => void }) {
  return (
    <section class="card" aria-labelledby="recovery">
      <h2 id="recovery">Your recovery code</h2>
      <p>If you forget your password, this code keeps your chats. Write it down now: it is shown this once, and to nobody else.</p>
      <p><code id="code">{code}</code></p>
      <button class="main" onClick={onKept}>I have it</button>
    </section>
  );
}
