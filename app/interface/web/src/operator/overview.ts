// The types of /v1/admin/overview, .../capacity and .../usage/users, and values derived from them. Times are Unix seconds.

export interface Ingress {
  id: string;
  node: string;
  replicas: number;
  version: string;
  up_since: number;
  open_requests: number;
  max_open_requests: number;
}

export interface Model {
  id: string;
  max_context_tokens: number;
  workers: number;
  running: number;
  waiting: number;
}

export interface Worker {
  worker_id: string;
  node: string;
  model_names: string[];
  state: "alive" | "stale" | "gone";
  speed: number;
  running: number;
  waiting: number;
  max_running: number;
  max_waiting: number;
  kv_pages: number;
  kv_pages_free: number;
  kv_pages_cached: number;
  generated_tokens_per_s: number;
  tier: string;
  ready_since: number;
  saved_bytes: number | null;
  asleep: boolean;
  max_saved_bytes: number | null;
}

export interface Failure {
  at: number;
  request_id: string;
  method: string;
  route: string;
  status: number;
  code: string | null;
  is_stream: boolean;
  user_id: string | null;
  credential: string | null;
}

export interface Overview {
  at: number;
  ingress: Ingress;
  models: Model[];
  workers: Worker[];
  failures: Failure[];
}

export interface Counts {
  requests: number;
  prompt_tokens: number;
  cached_tokens: number;
  output_tokens: number;
}

export interface UserUsage {
  user_id: string;
  name: string | null;
  today: Counts;
  days_7: Counts;
  days_30: Counts;
}

export interface ModelCapacity {
  name: string;
  workers: number;
  prompt_tokens_per_s: number;
  answer_tokens_per_s: number;
  kv_tokens: number;
  users: number;
  serves: boolean;
  limit: "read" | "compute" | "memory" | "places" | "kv_memory";
  candidates: { name: string; title: string; serves: boolean }[] | null;
}

/** The last overview of each ingress that has answered recently, newest first. */
export type Heard = readonly [Overview, ...Overview[]];

const LATELY_S = 60;

/** Adds an answer. Any ingress may answer, and each knows only its own requests and errors. */
export function heardWith(before: readonly Overview[], answer: Overview): Heard {
  const others = before.filter((each) => each.ingress.id !== answer.ingress.id && answer.at - each.at < LATELY_S);
  return [answer, ...others];
}

export type FailureOf = Failure & { ingress: string };

/** The failures of all ingresses, newest first. */
export function failuresOf(heard: Heard): FailureOf[] {
  const all = heard.flatMap(({ ingress, failures }) => failures.map((failure) => ({ ...failure, ingress: ingress.id })));
  return sorted(all, (failure) => failure.at, false);
}

export interface Load {
  up: number;
  running: number;
  maxRunning: number;
  waiting: number;
  tokensPerS: number;
}

/** Sums over all workers that get requests. */
export function loadOf(workers: readonly Worker[]): Load {
  const load: Load = { up: 0, running: 0, maxRunning: 0, waiting: 0, tokensPerS: 0 };
  for (const worker of workers.filter((each) => each.state === "alive")) {
    load.up += 1;
    load.running += worker.running;
    load.maxRunning += worker.max_running;
    load.waiting += worker.waiting;
    load.tokensPerS += worker.generated_tokens_per_s;
  }
  return load;
}

export const tokensOf = (counts: Counts): number => counts.prompt_tokens + counts.output_tokens;

export type Order<Row> = (row: Row) => number | string;

/** Sorts numbers descending and names ascending; or the reverse. Equal rows stay in order. */
export function sorted<Row>(rows: readonly Row[], order: Order<Row>, isReversed: boolean): Row[] {
  const compared = (one: Row, other: Row): number => {
    const [first, second] = [order(one), order(other)];
    return typeof first === "string" ? first.localeCompare(String(second), "en") : Number(second) - first;
  };
  return [...rows].sort((one, other) => (isReversed ? compared(other, one) : compared(one, other)));
}

/** Formats a duration in its two largest units: "3 d 4 h", "12 min", "8 s". */
export function lasting(seconds: number): string {
  const whole = Math.max(0, Math.floor(seconds));
  const units: [number, string][] = [[86_400, "d"], [3600, "h"], [60, "min"], [1, "s"]];
  const first = units.findIndex(([size]) => whole >= size);
  if (first < 0) return "0 s";
  const [[size, unit], next] = [units[first]!, units[first + 1]];
  const rest = next && unit !== "min" ? Math.floor((whole % size) / next[0]) : 0;
  return `${Math.floor(whole / size)} ${unit}${rest && next ? ` ${rest} ${next[1]}` : ""}`;
}

/** Formats a moment in this browser's time zone: "14:03:22", with the day unless it is today. */
export function moment(at: number, now: Date = new Date()): string {
  const then = new Date(at * 1000);
  const time = then.toLocaleTimeString("en-GB");
  if (then.toDateString() === now.toDateString()) return time;
  return `${then.toLocaleDateString("en-GB", { day: "numeric", month: "short" })}, ${time}`;
}
