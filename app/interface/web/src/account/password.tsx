// Changes the password.
import { useAction } from "../common/action";
import { call } from "../common/api";
import { Told } from "../common/told";

export function Password({ name }: { name: string }) {
  const { isBusy, outcome, run, dismiss } = useAction();

  function change(event: SubmitEvent) {
    event.preventDefault();
    const form = event.currentTarget as HTMLFormElement;
    const entered = new FormData(form);
    void run(async () => {
      const passwords = { password: String(entered.get("old")), new_password: String(entered.get("new")) };
      await call("POST", "/v1/auth/password", passwords);
      form.reset();
      return "Changed. Your other sessions have ended; API keys stay.";
    });
  }

  return (
    <section class="card" aria-labelledby="password">
      <h2 id="password">Password</h2>
      <form onSubmit={change}>
        <input hidden name="username" autocomplete="username" value={name} readOnly />
        <label>Present password<input name="old" type="password" autocomplete="current-password" required /></label>
        <label>New password<input name="new" type="password" autocomplete="new-password" required /></label>
        <div><button class="main" aria-disabled={isBusy}>Change the password</button></div>
      </form>
      <Told outcome={outcome} dismiss={dismiss} />
    </section>
  );
}
