// The last failed requests: when, how, whose, and their ids in the log and at the client.
import { useState } from "preact/hooks";

import { CopyButton } from "./copy";
import { moment, type Failure, type FailureOf } from "./overview";
import { Table } from "./table";

const FEW = 10;

interface Shown {
  failures: FailureOf[];
  names: ReadonlyMap<string, string>;
  hasIngresses: boolean;
}

/** names: of users, by id. hasIngresses: whether there are several ingresses. */
export function Failures({ failures, names, hasIngresses }: Shown) {
  const [isWhole, setWhole] = useState(false);
  const [hasRefusals, setRefusals] = useState(true);
  const chosen = hasRefusals ? failures : failures.filter(isOurs);
  const shown = isWhole ? chosen : chosen.slice(0, FEW);
  return (
    <section class="card" aria-labelledby="errors">
      <h2 id="errors">Errors</h2>
      <p class="quiet small">
        The last 100 refusals and the last 100 failures of {hasIngresses ? "each ingress" : "the service"}, since its start. They tell no text,
        and are kept in memory only.
      </p>
      <label class="check">
        <input type="checkbox" checked={hasRefusals} onChange={(event) => setRefusals(event.currentTarget.checked)} />
        Refusals too
      </label>
      {chosen.length === 0 && <p>There was none.</p>}
      {chosen.length > 0 && (
        <Table
          label="Errors"
          rows={shown}
          keyOf={(failure) => `${failure.ingress} ${failure.request_id} ${failure.at}`}
          columns={[
            { name: "Time", isShort: true, of: (failure) => moment(failure.at) },
            { name: "Status", isShort: true, of: status },
            { name: "Code", of: (failure) => failure.code ?? "none" },
            { name: "Route", of: (failure) => `${failure.method} ${failure.route}` },
            ...(hasIngresses ? [{ name: "Ingress", of: (failure: FailureOf) => <code>{failure.ingress}</code> }] : []),
            { name: "User", of: (failure) => who(failure, names) },
            {
              name: "Request id",
              of: (failure) => (
                <span class="id">
                  <code>{failure.request_id}</code>
                  <CopyButton text={failure.request_id} label={`Copy the request id ${failure.request_id}`} />
                </span>
              ),
            },
          ]}
        />
      )}
      {chosen.length > FEW && (
        <div><button onClick={() => setWhole(!isWhole)}>{isWhole ? "Show fewer" : `Show all ${chosen.length}`}</button></div>
      )}
    </section>
  );
}

/** Whether the service has failed, not the client. */
const isOurs = (failure: Failure): boolean => failure.is_stream || failure.status >= 500;

function status(failure: Failure) {
  return <span class={isOurs(failure) ? "state gone" : ""}>{failure.status}{failure.is_stream && ", broken off"}</span>;
}

function who(failure: Failure, names: ReadonlyMap<string, string>) {
  if (failure.user_id === null) return <span class="quiet">nobody</span>;
  return (
    <>
      {names.get(failure.user_id) ?? failure.user_id}
      <br />
      <code class="quiet">{failure.credential}</code>
    </>
  );
}
