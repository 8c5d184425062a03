// A confirmation before what can't be undone; the safe answer has the focus.
import type { ComponentChildren } from "preact";
import { useLayoutEffect, useRef } from "preact/hooks";

interface Asked {
  /** The `data-id` of the button that asked, which gets the focus back. */
  of: string;
  label: string;
  yes: string;
  no: string;
  isBusy: boolean;
  onYes: () => void;
  onNo: () => void;
  children: ComponentChildren;
}

export function Confirm({ of, label, yes, no, isBusy, onYes, onNo, children }: Asked) {
  const safe = useRef<HTMLButtonElement>(null);
  useLayoutEffect(() => safe.current?.focus(), []);
  return (
    <div class="card" role="group" aria-label={label}>
      <p>{children}</p>
      <div class="row">
        <button class="bad" data-id={of} aria-disabled={isBusy} onClick={onYes}>{yes}</button>
        <button ref={safe} data-id={of} onClick={onNo}>{no}</button>
      </div>
    </div>
  );
}
