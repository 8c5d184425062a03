// The result of an action, announced by screen readers too; it can be dismissed.
import type { Outcome } from "./action";

export function Told({ outcome, dismiss }: { outcome: Outcome | null; dismiss?: () => void }) {
  return (
    <div role="status">
      {outcome && (
        <div class={outcome.isFailure ? "told failed" : "told"}>
          <p>{outcome.text}</p>
          {outcome.undo && <button onClick={outcome.undo}>Undo</button>}
          {dismiss && <button class="dismiss" aria-label="Dismiss" onClick={dismiss}>×</button>}
        </div>
      )}
    </div>
  );
}
