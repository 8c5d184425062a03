// The page /operator: workers, load, queue, KV pages, capacity, errors by id and usage by user, for administrators.
import { render } from "preact";
import { useEffect, useState } from "preact/hooks";

import "../common/style.css";
import "./style.css";
import { ApiFailure, call } from "../common/api";
import { believe, isOver, leave, watch } from "../common/session";
import { Capacity } from "./capacity";
import { Failures } from "./failures";
import { failuresOf, heardWith, moment, type Heard, type Overview, type UserUsage } from "./overview";
import { poll, type Seen } from "../common/poll";
import { Models, Service } from "./service";
import { Users } from "./users";
import { Workers } from "./workers";

const OVERVIEW_MS = 2000;
const USAGE_MS = 60_000;

/** asker: creates the function that is called for each request. */
function usePolled<Answer>(asker: () => (signal: AbortSignal) => Promise<Answer>, periodMs: number): Seen<Answer> {
  const [seen, setSeen] = useState<Seen<Answer>>({ value: null, failure: null });
  useEffect(() => poll(asker(), periodMs, setSeen), []);
  return seen;
}

function overviews() {
  let heard: readonly Overview[] = [];
  return async (signal: AbortSignal): Promise<Heard> => {
    const now = heardWith(heard, await call<Overview>("GET", "/v1/admin/overview", undefined, signal));
    heard = now;
    return now;
  };
}

const usages = () => async (signal: AbortSignal) =>
  (await call<{ data: UserUsage[] }>("GET", "/v1/admin/usage/users", undefined, signal)).data;

function Operator() {
  const now = usePolled(overviews, OVERVIEW_MS);
  const status = now.failure instanceof ApiFailure ? now.failure.status : null;
  useEffect(() => {
    if (status === 401 || (now.failure instanceof ApiFailure && isOver(now.failure.code))) leave("/operator");
  }, [now.failure]);

  const isForbidden = status === 403;
  return (
    <main class="operator">
      <nav class="row apart">
        <a class="brand" href="/">Redoubt</a>
        <span class="row"><a href="/account">Account</a><a href="/">Back to the chat</a></span>
      </nav>
      <h1>Operator</h1>
      <div role="status">{!isForbidden && now.failure !== null && <Reconnecting at={now.value?.[0].at ?? null} status={status} />}</div>
      {isForbidden && <p role="alert" class="told failed">This page is for administrators only.</p>}
      {!isForbidden && now.value === null && now.failure === null && <p class="quiet">Loading…</p>}
      {!isForbidden && now.value && (
        <div class={now.failure === null ? "sections" : "sections old"}><Sections heard={now.value} /></div>
      )}
    </main>
  );
}

function Sections({ heard }: { heard: Heard }) {
  const [{ at, ingress, models, workers }] = heard;
  const { value: users } = usePolled(usages, USAGE_MS);
  const names = new Map(users?.map((user) => [user.user_id, user.name ?? user.user_id]));
  return (
    <>
      <Service heard={heard} />
      <Workers workers={workers} at={at} />
      <Models models={models} />
      <Capacity />
      <Failures failures={failuresOf(heard)} names={names} hasIngresses={ingress.replicas > 1} />
      {users && <Users users={users} />}
    </>
  );
}

function Reconnecting({ at, status }: { at: number | null; status: number | null }) {
  const why = status === 503 ? "The service is up, but its accounts do not answer or every place is taken." : "The service cannot be reached.";
  return <p class="told failed">Reconnecting. {why}{at !== null && ` What is shown was true at ${moment(at)}.`}</p>;
}

/** Checks the session before it requests anything else. */
async function begin(): Promise<void> {
  try {
    believe((await call<{ user_id: string }>("GET", "/v1/auth/session")).user_id);
  } catch (error) {
    if (error instanceof ApiFailure && error.status === 401) return location.replace("/login?next=/operator");
  }
  watch(() => leave("/operator"));
  render(<Operator />, document.getElementById("page")!);
}

void begin();
