// The result of an action, announced by screen readers too.
import type { Outcome } from "./action";

export function Told({ outcome }: { outcome: Outcome | null }) {
  return <div role="status">{outcome && <p class={outcome.isFailure ? "told failed" : "told"}>{outcome.text}</p>}</div>;
}
