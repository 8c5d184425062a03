// How many users the workers can serve as measured, what limits them, and which machines would serve those asked for.
import { useState } from "preact/hooks";

import { call, inWords } from "../common/api";
import type { ModelCapacity } from "./overview";
import { Table } from "./table";

const MOST_USERS = 1_000_000;
const GIVE_UP_MS = 130_000;
const LIMITS = {
  read: "reading from memory",
  compute: "multiply-adds",
  memory: "memory of the KV cache",
  places: "worker.max_concurrent_requests",
  kv_memory: "engine.kv_memory_bytes",
} as const;

export function Capacity() {
  const [users, setUsers] = useState("10");
  const [asked, setAsked] = useState<{ users: number; models: ModelCapacity[] } | null>(null);
  const [isAsking, setIsAsking] = useState(false);
  const [failure, setFailure] = useState("");

  const ask = async (event: Event) => {
    event.preventDefault();
    if (isAsking) return;
    setIsAsking(true);
    setFailure("");
    try {
      const path = `/v1/admin/capacity?users=${encodeURIComponent(users)}`;
      const answer = await call<{ users: number; data: ModelCapacity[] }>("GET", path, undefined, AbortSignal.timeout(GIVE_UP_MS));
      setAsked({ users: answer.users, models: answer.data });
    } catch (error) {
      setFailure(inWords(error));
    }
    setIsAsking(false);
  };

  return (
    <section class="card" aria-labelledby="capacity">
      <h2 id="capacity">Capacity</h2>
      <p class="quiet small">
        How many users the workers serve with a first token under 3 s and 200 ms a token, at 95 %, if each sends a request a minute. Computed from
        the warm-up of each model's slowest worker, with its settings; it takes some seconds. If a setting limits, its name is there.
      </p>
      <form class="row" onSubmit={(event) => void ask(event)}>
        <label for="capacity-users">Users</label>
        <input
          id="capacity-users"
          type="number"
          min="1"
          max={MOST_USERS}
          required
          value={users}
          onInput={(event) => setUsers(event.currentTarget.value)}
        />
        <button type="submit" disabled={isAsking}>{isAsking ? "Computing…" : "Compute"}</button>
      </form>
      {failure && <p role="alert" class="told failed">{failure}</p>}
      <div role="status">
        {asked && asked.models.length === 0 && <p class="quiet">No worker that is up has measured itself.</p>}
        {asked && asked.models.length > 0 && <Models users={asked.users} models={asked.models} />}
      </div>
    </section>
  );
}

function Models({ users, models }: { users: number; models: ModelCapacity[] }) {
  return (
    <>
      <Table
        label="Capacity"
        rows={models}
        keyOf={(model) => model.name}
        columns={[
          { name: "Model", of: (model) => model.name },
          { name: "Workers", isNumber: true, of: (model) => model.workers },
          { name: "Prompt, tokens a second", isNumber: true, of: (model) => shown(model.prompt_tokens_per_s) },
          { name: "One answer", isNumber: true, of: (model) => shown(model.answer_tokens_per_s) },
          { name: "Users", isNumber: true, of: (model) => model.users.toLocaleString("en") },
          { name: `Serves ${users.toLocaleString("en")}`, of: (model) => (model.serves ? "yes" : "no") },
          { name: "What limits", of: (model) => LIMITS[model.limit] },
        ]}
      />
      {models.map((model) => <Machines key={model.name} model={model} users={users} />)}
    </>
  );
}

function Machines({ model, users }: { model: ModelCapacity; users: number }) {
  if (model.candidates === null) return <p class="small">Nobody has measured weights of the type of {model.name} on other machines.</p>;
  const titles = model.candidates.filter((each) => each.serves).map((each) => each.title);
  const who = `${users.toLocaleString("en")} users of ${model.name}`;
  if (titles.length === 0) return <p class="small">No single machine of the table would serve {who}.</p>;
  return (
    <details>
      <summary>{titles.length} machines of the table would serve {who}</summary>
      <p class="small">{titles.join(", ")}. Each with one worker a socket, and places and KV cache as these users need them. Expected from what vendors publish and our measurements with two cores; <code>redoubt plan</code> has the details.</p>
    </details>
  );
}

const shown = (value: number): string => (value >= 100 ? Math.round(value).toLocaleString("en") : value.toFixed(1));
