// The service in a few figures, its ingresses if there are several, and its models.
import { lasting, loadOf, moment, sorted, type Heard, type Model } from "./overview";
import { Bar, Table } from "./table";

export function Service({ heard }: { heard: Heard }) {
  const [{ at, ingress, workers }] = heard;
  const load = loadOf(workers);
  const sum = (of: "open_requests" | "max_open_requests") => heard.reduce((total, each) => total + each.ingress[of], 0);
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
          <dd><Bar label="Open requests" value={sum("open_requests")} max={sum("max_open_requests")} /></dd>
        </div>
        <div><dt>Up for</dt><dd>{lasting(Math.max(...heard.map((each) => at - each.ingress.up_since)))}</dd></div>
        <div><dt>Version</dt><dd>{ingress.version}</dd></div>
      </dl>
      {ingress.replicas > 1 ? <Ingresses heard={heard} /> : <p class="quiet small">Ingress <code>{ingress.id}</code> on {ingress.node}</p>}
    </section>
  );
}

function Ingresses({ heard }: { heard: Heard }) {
  const [{ ingress: { replicas } }] = heard;
  return (
    <>
      <p class="quiet small">
        {Math.min(heard.length, replicas)} of {replicas} ingresses have answered in the last minute. Each knows its own open requests and errors
        only, and the proxy in front chooses which one answers.
      </p>
      <Table
        label="Ingresses"
        rows={sorted(heard, (each) => each.ingress.id, false)}
        keyOf={(each) => each.ingress.id}
        columns={[
          { name: "Ingress", of: ({ ingress }) => <code>{ingress.id}</code> },
          { name: "Node", of: ({ ingress }) => ingress.node },
          {
            name: "Open requests",
            of: ({ ingress }) => <Bar label={`Open requests of ${ingress.id}`} value={ingress.open_requests} max={ingress.max_open_requests} />,
          },
          { name: "Up for", isNumber: true, of: ({ at, ingress }) => lasting(at - ingress.up_since) },
          { name: "Answered", isNumber: true, of: ({ at }) => moment(at) },
        ]}
      />
    </>
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
