// What the local proxy says of the machine that answers: the lock, what was checked, and when. Only the proxy's copy of the
// page loads this (`isProxied`): a service could answer the same question as it likes.
import { useEffect, useState } from "preact/hooks";

import type { Chat } from "./chat";
import { Icon } from "./icons";

interface Verdict {
  unpinned: string[];
  measurements: Record<string, string>;
  tcb_status: string;
  advisories: string[];
  platform: string;
  tls_spki_sha256: string;
  image: string | null;
  config_sha256: string;
  models: [name: string, sha256: string][];
  verified_at: string;
}

interface Answer {
  service: string;
  state: "verified" | "insecure" | "refused" | "unreachable";
  why?: string;
  checked_at: string;
  policy_expires: string;
  holds_until?: string;
  verdict?: Verdict;
  last_refusal: { at: string; why: string } | null;
}

/** "asking": there is no answer yet. "gone": the proxy does not answer, so nothing is known. */
type Shown = Answer | "asking" | "gone";

const ASK_AGAIN_MS = 15_000;
const TIMEOUT_MS = 30_000;

async function asked(): Promise<Shown> {
  try {
    const response = await fetch("/verdict.json", { cache: "no-store", signal: AbortSignal.timeout(TIMEOUT_MS) });
    return response.ok ? ((await response.json()) as Answer) : "gone";
  } catch {
    return "gone";
  }
}

export function Lock({ chat }: { chat: Chat }) {
  const [shown, setShown] = useState<Shown>("asking");
  const { writing, isReachable } = chat.state;
  // Again whenever a question begins or ends, or the service goes or comes.
  useEffect(() => {
    let isOver = false;
    let timer: ReturnType<typeof setTimeout> | undefined;
    const ask = async () => {
      const answer = await asked();
      if (isOver) return;
      setShown(answer);
      clearTimeout(timer);
      timer = setTimeout(() => void ask(), ASK_AGAIN_MS);
    };
    const onVisible = () => document.hidden || void ask();
    void ask();
    document.addEventListener("visibilitychange", onVisible);
    return () => {
      isOver = true;
      clearTimeout(timer);
      document.removeEventListener("visibilitychange", onVisible);
    };
  }, [writing, isReachable]);

  const state = typeof shown === "string" ? shown : shown.state;
  const isRefused = state === "refused" || state === "insecure";
  return (
    <details class={`verdict ${state}`}>
      <summary>
        <Icon name={state === "verified" ? "lock" : "unlocked"} />
        <span role={isRefused ? "alert" : "status"}>{worded(shown)}</span>
      </summary>
      {typeof shown !== "string" && <Details answer={shown} />}
    </details>
  );
}

function worded(shown: Shown): string {
  if (shown === "asking") return "Verifying the machine…";
  if (shown === "gone") return "Not verified: the proxy does not answer. Nothing is sent.";
  if (shown.state === "verified") return `Verified: ${shown.service} runs in a TDX trust domain.`;
  if (shown.state === "insecure") return "INSECURE: a test key signed this evidence. No processor protects what you send.";
  if (shown.state === "refused") return `REFUSED: ${shown.why}. Nothing is sent.`;
  return "Not verified: the service does not answer. Nothing is sent.";
}

const moment = (iso: string) => new Date(iso).toLocaleString("en-GB", { dateStyle: "medium", timeStyle: "medium" });

function Details({ answer }: { answer: Answer }) {
  const { verdict, last_refusal: refusal } = answer;
  const rows: [string, string][] = [
    ["Service", answer.service],
    ["Last asked", moment(answer.checked_at)],
    ...(answer.why && answer.state === "unreachable" ? [["Why", answer.why] as [string, string]] : []),
    ...(verdict ? ofVerdict(verdict, answer.holds_until ?? "") : []),
    ["The policy ends", moment(answer.policy_expires)],
    ...(refusal ? [["Last refused connection", `${moment(refusal.at)}: ${refusal.why}`] as [string, string]] : []),
  ];
  return (
    <div class="checked" tabIndex={0} role="group" aria-label="What was checked">
      <dl>
        {rows.map(([name, value]) => (
          <div key={name}>
            <dt>{name}</dt>
            <dd>{value}</dd>
          </div>
        ))}
      </dl>
    </div>
  );
}

function ofVerdict(verdict: Verdict, until: string): [string, string][] {
  return [
    ["Evidence checked", `${moment(verdict.verified_at)}; it holds until ${moment(until)}`],
    ["Signatures and platform", [verdict.tcb_status, ...verdict.advisories].join(", ")],
    ["TLS key of this connection", verdict.tls_spki_sha256],
    ["Image", verdict.image ?? "none is named"],
    ["Configuration", verdict.config_sha256],
    ...verdict.models.map(([name, digest]): [string, string] => [`Model ${name}`, digest]),
    ...Object.entries(verdict.measurements).map(([name, digest]): [string, string] => [name.toUpperCase(), digest]),
    ["Platform", verdict.platform],
    ["Left open by the policy", verdict.unpinned.join(", ") || "nothing"],
  ];
}
