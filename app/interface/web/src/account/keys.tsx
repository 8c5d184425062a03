// The user's API keys. A new one's secret is shown once.
import { useEffect, useState } from "preact/hooks";

import { useAction } from "../common/action";
import { call } from "../common/api";
import { Confirm } from "../common/confirm";
import { day } from "../common/numbers";
import { Told } from "../common/told";

interface Key {
  id: string;
  label: string;
  created_at: number;
  expires_at: number | null;
}

export function Keys() {
  const [keys, setKeys] = useState<Key[]>([]);
  const [secret, setSecret] = useState("");
  const { isBusy, outcome, run, dismiss } = useAction();
  const [leaving, setLeaving] = useState("");

  async function look() {
    setKeys((await call<{ data: Key[] }>("GET", "/v1/keys")).data);
  }
  useEffect(() => {
    void run(async () => {
      await look();
      return "";
    });
  }, []);

  function add(event: SubmitEvent) {
    event.preventDefault();
    const form = event.currentTarget as HTMLFormElement;
    const entered = new FormData(form);
    const days = Number(entered.get("days"));
    void run(async () => {
      const wanted = { label: String(entered.get("label")), ...(days ? { expires_in_days: days } : {}) };
      setSecret((await call<{ secret: string }>("POST", "/v1/keys", wanted)).secret);
      form.reset();
      await look();
      return "";
    });
  }
  const revoke = (key: Key) =>
    run(async () => {
      await call("DELETE", `/v1/keys/${encodeURIComponent(key.id)}`);
      setLeaving("");
      setSecret("");
      await look();
      return `Revoked: ${key.label || key.id}.`;
    });
  const copy = () =>
    run(async () => {
      // A page without TLS has no clipboard.
      if (!navigator.clipboard) return "Select the key and copy it: this browser lets only https:// pages copy.";
      await navigator.clipboard.writeText(secret);
      return "Copied.";
    });

  return (
    <section class="card" aria-labelledby="keys">
      <h2 id="keys">API keys</h2>
      <ul>
        {keys.map((key) => (
          <li class="row apart" key={key.id}>
            <span>
              {key.label || <code>{key.id}</code>}
              <br />
              <span class="quiet small">
                Added {day(key.created_at)}, {key.expires_at === null ? "does not expire" : `expires ${day(key.expires_at)}`}
              </span>
            </span>
            {leaving === key.id ? (
              <Confirm of={key.id} label="Revoke the key" yes="Revoke it" no="Keep it" isBusy={isBusy} onYes={() => void revoke(key)} onNo={() => setLeaving("")}>
                What uses this key is refused from now on. It cannot be undone.
              </Confirm>
            ) : (
              <button class="bad" aria-label={`Revoke ${key.label || key.id}`} data-id={key.id} aria-disabled={isBusy} onClick={() => setLeaving(key.id)}>
                Revoke…
              </button>
            )}
          </li>
        ))}
      </ul>
      {secret && (
        <div class="told">
          <p>Copy this key now. It is not shown again.</p>
          <p><code id="secret">{secret}</code></p>
          <button onClick={copy}>Copy</button>
          <button class="dismiss" aria-label="Dismiss the key" onClick={() => setSecret("")}>×</button>
        </div>
      )}
      <form onSubmit={add}>
        <label>Label<input name="label" maxLength={100} autocomplete="off" /></label>
        <label>Days until it expires (empty: never)<input name="days" type="number" min={1} max={3650} autocomplete="off" /></label>
        <div><button class="main" aria-disabled={isBusy}>Add a key</button></div>
      </form>
      <Told outcome={outcome} dismiss={dismiss} />
    </section>
  );
}
