// Runs one action on the service at a time, and shows its result.
import { useRef, useState } from "preact/hooks";

import { hasEnded, inWords } from "./api";
import { leave } from "./session";

export interface Outcome {
  text: string;
  isFailure: boolean;
  undo?: () => void;
}

/** A result that can be undone for some seconds. */
export interface Undoable {
  text: string;
  undo: () => void;
  forMs: number;
}

/**
 * `run` does the work and shows what it returns, or the failure; without a session it leads to /login. While it works
 * further calls do nothing: buttons say so with `aria-disabled`, since one that is disabled would lose the focus.
 */
export function useAction() {
  const [isBusy, setBusy] = useState(false);
  const [outcome, setOutcome] = useState<Outcome | null>(null);
  const working = useRef(false);
  const ending = useRef<ReturnType<typeof setTimeout> | undefined>(undefined);
  const tell = (told: Outcome | null) => (clearTimeout(ending.current), setOutcome(told));

  async function run(work: () => Promise<string | Undoable>): Promise<void> {
    if (working.current) return;
    working.current = true;
    setBusy(true);
    tell(null);
    try {
      const done = await work();
      if (typeof done === "string") tell(done ? { text: done, isFailure: false } : null);
      else {
        tell({ text: done.text, isFailure: false, undo: done.undo });
        ending.current = setTimeout(() => setOutcome({ text: done.text, isFailure: false }), done.forMs);
      }
    } catch (error) {
      if (hasEnded(error)) {
        leave(location.pathname);
        return;
      }
      tell({ text: inWords(error), isFailure: true });
    } finally {
      working.current = false;
      setBusy(false);
    }
  }

  return { isBusy, outcome, run, dismiss: () => tell(null) };
}
