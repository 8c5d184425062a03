// The page /operator: workers, load, queue, pages, errors by id and usage by user, for administrators.
import { render } from "preact";
import { useEffect, useState } from "preact/hooks";

import "../common/style.css";
import "./style.css";
import { ApiFailure, call } from "../common/api";
import { Failures } from "./failures";
import { moment, type Overview, type UserUsage } from "./overview";
import { poll, type Seen } from "./poll";
import { Models, Service } from "./service";
import { Users } from "./users";
import { Workers } from "./workers";

const OVERVIEW_MS = 2000;
const USAGE_MS = 60_000;

function usePolled<Answer>(path: string, periodMs: number): Seen<Answer> {
  const [seen, setSeen] = useState<Seen<Answer>>({ value: null, failure: null });
  useEffect(() => poll((signal) => call<Answer>("GET", path, undefined, signal), periodMs, setSeen), []);
  return seen;
}

function Operator() {
  const now = usePolled<Overview>("/v1/admin/overview", OVERVIEW_MS);
  const status = now.failure instanceof ApiFailure ? now.failure.status : null;
  useEffect(() => {
    if (status === 401) location.replace("/login?next=/operator");
  }, [status]);

  const isForbidden = status === 403;
  return (
    <main class="operator">
      <nav class="row apart">
        <a class="brand" href="/">Redoubt</a>
        <span class="row"><a href="/account">Account</a><a href="/">Back to the chat</a></span>
      </nav>
      <h1>Operator</h1>
      <div role="status">{!isForbidden && now.failure !== null && <Reconnecting at={now.value?.at ?? null} status={status} />}</div>
      {isForbidden && <p role="alert" class="told failed">This page is for administrators only.</p>}
      {!isForbidden && now.value === null && now.failure === null && <p class="quiet">Loading…</p>}
      {!isForbidden && now.value && (
        <div class={now.failure === null ? "sections" : "sections old"}><Sections overview={now.value} /></div>
      )}
    </main>
  );
}

function Sections({ overview }: { overview: Overview }) {
  const usage = usePolled<{ data: UserUsage[] }>("/v1/admin/usage/users", USAGE_MS);
  const names = new Map(usage.value?.data.map((user) => [user.user_id, user.name ?? user.user_id]));
  return (
    <>
      <Service overview={overview} />
      <Workers workers={overview.workers} at={overview.at} />
      <Models models={overview.models} />
      <Failures failures={overview.failures} names={names} />
      {usage.value && <Users users={usage.value.data} />}
    </>
  );
}

function Reconnecting({ at, status }: { at: number | null; status: number | null }) {
  const why = status === 503 ? "The service is up, but its accounts do not answer or every place is taken." : "The service cannot be reached.";
  return <p class="told failed">Reconnecting. {why}{at !== null && ` What is shown was true at ${moment(at)}.`}</p>;
}

render(<Operator />, document.getElementById("page")!);
