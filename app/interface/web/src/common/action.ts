// Runs one action on the service at a time, and shows its result.
import { useState } from "preact/hooks";

import { ApiFailure, inWords } from "./api";
import { isOver, leave } from "./session";

export interface Outcome {
  text: string;
  isFailure: boolean;
}

/** `run` does the work and shows the sentence that it returns, or the failure; without a session it leads to /login. */
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
      if (error instanceof ApiFailure && (isOver(error.code) || error.status === 401 && error.code !== "invalid_login")) {
        leave(location.pathname);
        return;
      }
      setOutcome({ text: inWords(error), isFailure: true });
    } finally {
      setBusy(false);
    }
  }

  return { isBusy, outcome, run };
}
