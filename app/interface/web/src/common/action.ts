// One thing that a person asks of the service at a time, and what became of it.
import { useState } from "preact/hooks";

import { ApiFailure, inWords } from "./api";

export interface Outcome {
  text: string;
  isFailure: boolean;
}

/** `run` does the work and shows the sentence that it returns, or the failure; who is logged out goes to /login. */
export function useAction() {
  const [isBusy, setBusy] = useState(false);
  const [outcome, setOutcome] = useState<Outcome | null>(null);

  async function run(work: () => Promise<string>): Promise<void> {
    setBusy(true);
    setOutcome(null);
    try {
      const text = await work();
      setOutcome(text ? { text, isFailure: false } : null);
    } catch (error) {
      if (error instanceof ApiFailure && ["session_expired", "invalid_api_key"].includes(error.code ?? "")) {
        location.assign(`/login?next=${encodeURIComponent(location.pathname)}`);
        return;
      }
      setOutcome({ text: inWords(error), isFailure: true });
    } finally {
      setBusy(false);
    }
  }

  return { isBusy, outcome, run };
}
