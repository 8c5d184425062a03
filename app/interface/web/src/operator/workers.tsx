// The worker table: the state and load of each worker.
import { bytes } from "../common/numbers";
import { lasting, type Worker } from "./overview";
import { Bar, Table, type Column } from "./table";

const STATES = { alive: "Up", stale: "Silent", gone: "Gone" };

export function Workers({ workers, at }: { workers: Worker[]; at: number }) {
  const columns: Column<Worker>[] = [
    {
      name: "Worker",
      of: (worker) => (
        <>
          <code>{worker.worker_id}</code>
          <br />
          <span class="quiet small">{worker.node}, {worker.tier}</span>
        </>
      ),
    },
    { name: "Model", of: (worker) => worker.model_names.join(", ") },
    {
      name: "State",
      isShort: true,
      of: (worker) => (
        <>
          <span class={`state ${worker.state}`}>{sleeps(worker) ? "Asleep" : STATES[worker.state]}</span>
          {worker.state === "alive" && !sleeps(worker) && <span class="quiet small"> for {lasting(at - worker.ready_since)}</span>}
        </>
      ),
    },
    { name: "Running", of: (worker) => <Bar label={`Running on ${worker.worker_id}`} value={worker.running} max={worker.max_running} /> },
    { name: "Waiting", of: (worker) => <Bar label={`Waiting for ${worker.worker_id}`} value={worker.waiting} max={worker.max_waiting} /> },
    {
      name: "Pages",
      of: (worker) => (
        <>
          <Bar label={`Pages of ${worker.worker_id}`} value={worker.kv_pages - worker.kv_pages_free} max={worker.kv_pages} />
          <span class="quiet small">{worker.kv_pages_cached.toLocaleString("en")} cached</span>
        </>
      ),
    },
    {
      name: "Tokens a second",
      of: (worker) => (
        <>
          {worker.generated_tokens_per_s.toFixed(1)}
          <br />
          <span class="quiet small">warm-up {worker.speed.toLocaleString("en")}</span>
        </>
      ),
    },
  ];
  if (workers.some((worker) => worker.max_saved_bytes !== null)) columns.push({ name: "Saved on disk", of: saved });
  return (
    <section class="card" aria-labelledby="workers">
      <h2 id="workers">Workers</h2>
      {workers.length ? (
        <Table label="Workers" rows={workers} keyOf={(worker) => worker.worker_id} columns={columns} />
      ) : (
        <p class="quiet">None has reported.</p>
      )}
    </section>
  );
}

const sleeps = (worker: Worker) => worker.state === "alive" && worker.asleep;

function saved({ saved_bytes, max_saved_bytes }: Worker) {
  if (max_saved_bytes === null) return "Nothing";
  return `${saved_bytes === null ? "Not counted yet" : bytes(saved_bytes)} of ${bytes(max_saved_bytes)}`;
}
