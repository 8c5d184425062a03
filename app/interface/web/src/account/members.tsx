// With whom a collection is shared, for its owner: everybody withdraws, and administrators share.
import { useEffect, useState } from "preact/hooks";

import { useAction } from "../common/action";
import { call } from "../common/api";
import { counted } from "../common/numbers";
import { Told } from "../common/told";
import { at } from "./documents";

interface Shared {
  users: string[];
}

export function Members({ id, isAdmin }: { id: string; isAdmin: boolean }) {
  const [users, setUsers] = useState<string[]>([]);
  const { isBusy, outcome, run, dismiss } = useAction();
  const path = at(id, "/members");

  useEffect(() => {
    void run(async () => {
      setUsers((await call<Shared>("GET", path)).users);
      return "";
    });
  }, []);
  /** change: of those with whom it is shared now, as another page may have changed them. */
  const share = async (change: (before: string[]) => string[]) => {
    const before = (await call<Shared>("GET", path)).users;
    setUsers((await call<Shared>("POST", path, { users: [...new Set(change(before))] })).users);
  };
  function invite(event: SubmitEvent) {
    event.preventDefault();
    const form = event.currentTarget as HTMLFormElement;
    const names = String(new FormData(form).get("users")).split(",").map((one) => one.trim()).filter(Boolean);
    void run(async () => {
      await share((before) => [...before, ...names]);
      form.reset();
      return `Shared with ${counted(names.length, "user")}.`;
    });
  }
  const withdraw = (name: string) =>
    run(async () => {
      await share((before) => before.filter((one) => one !== name));
      return `${name} can open it no more.`;
    });

  return (
    <>
      <ul aria-label="Shared with">
        {users.map((name) => (
          <li class="row apart" key={name}>
            <span>Shared with {name}</span>
            <button class="bad" aria-label={`Withdraw from ${name}`} aria-disabled={isBusy} onClick={() => withdraw(name)}>Withdraw</button>
          </li>
        ))}
      </ul>
      {isAdmin && (
        <form onSubmit={invite}>
          <label>Share with (names of users, with commas between)<input name="users" required autocomplete="off" /></label>
          <div><button aria-disabled={isBusy}>Share</button></div>
        </form>
      )}
      <Told outcome={outcome} dismiss={dismiss} />
    </>
  );
}
