// A confirmation before what can't be undone; the safe answer has the focus.
import type { ComponentChildren } from "preact";

interface Asked {
  label: string;
  yes: string;
  no: string;
  isBusy: boolean;
  onYes: () => void;
  onNo: () => void;
  children: ComponentChildren;
}

export function Confirm({ label, yes, no, isBusy, onYes, onNo, children }: Asked) {
  return (
    <div class="card" role="group" aria-label={label}>
      <p>{children}</p>
      <div class="row">
        <button class="bad" disabled={isBusy} onClick={onYes}>{yes}</button>
        <button autofocus onClick={onNo}>{no}</button>
      </div>
    </div>
  );
}
