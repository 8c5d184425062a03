// The service in a few figures, and its models.
import { lasting, loadOf, type Model, type Overview } from "./overview";
import { Bar, Table } from "./table";

export function Service({ overview }: { overview: Overview }) {
  const { ingress, workers } = overview;
  const load = loadOf(workers);
  return (
    <section class="card" aria-labelledby="service">
      <h2 id="service">Service</h2>
      <dl class="figures">
        <div><dt>Workers up</dt><dd>{load.up} of {workers.length}</dd></div>
        <div><dt>Running</dt><dd><Bar label="Running" value={load.running} max={load.maxRunning} /></dd></div>
        <div><dt>Waiting</dt><dd>{load.waiting.toLocaleString("en")}</dd></div>
        <div><dt>Tokens a second</dt><dd>{load.tokensPerS.toFixed(1)}</dd></div>
        <div>
          <dt>Open requests</dt>
          <dd><Bar label="Open requests" value={ingress.open_requests} max={ingress.max_open_requests} /></dd>
        </div>
        <div><dt>Up for</dt><dd>{lasting(overview.at - ingress.up_since)}</dd></div>
        <div><dt>Version</dt><dd>{ingress.version}</dd></div>
      </dl>
      <p class="quiet small">
        Open requests and errors are those of ingress <code>{ingress.id}</code> on {ingress.node}
        {ingress.replicas > 1 && `, one of ${ingress.replicas}: the next answer may be another one's`}.
      </p>
    </section>
  );
}

export function Models({ models }: { models: Model[] }) {
  return (
    <section class="card" aria-labelledby="models">
      <h2 id="models">Models</h2>
      <Table
        label="Models"
        rows={models}
        keyOf={(model) => model.id}
        columns={[
          { name: "Model", of: (model) => model.id },
          { name: "Workers up", isNumber: true, of: (model) => model.workers },
          { name: "Running", isNumber: true, of: (model) => model.running },
          { name: "Waiting", isNumber: true, of: (model) => model.waiting },
          { name: "Context", isNumber: true, of: (model) => `${model.max_context_tokens.toLocaleString("en")} tokens` },
        ]}
      />
    </section>
  );
}
