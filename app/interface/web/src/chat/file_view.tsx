// What the model sees of a file.
import { useLayoutEffect, useRef } from "preact/hooks";

import { sizeOf } from "./chips";
import type { Attached } from "./tree";

/** Texts are drawn in parts of about so many characters, of which the browser lays out what is on the screen. */
const PART_CHARS = 8000;

export function FileView({ file, close }: { file: Attached; close: () => void }) {
  const dialog = useRef<HTMLDialogElement>(null);
  useLayoutEffect(() => dialog.current?.showModal(), []);
  return (
    <dialog ref={dialog} class="viewer" aria-labelledby="file-title" onClose={close}>
      <div>
        <h2 id="file-title" dir="auto">{file.name}</h2>
        <p class="quiet small">{[sizeOf(file), "This is what the model sees."].filter(Boolean).join(". ")}</p>
        {file.notes?.map((one) => <p class="note small">{one}</p>)}
      </div>
      <div class="pages" tabIndex={0} role="region" aria-label="Text" dir="auto">
        {file.text ? partsOf(file.text).map((part, place) => <pre key={place}>{part}</pre>) : <p class="quiet">It has no text.</p>}
      </div>
      <button class="main" onClick={() => dialog.current?.close()}>Close</button>
    </dialog>
  );
}

/** A text cut at ends of lines. */
export function partsOf(text: string): string[] {
  const parts: string[] = [];
  for (let at = 0; at < text.length; ) {
    const end = text.indexOf("\n", at + PART_CHARS);
    const next = end < 0 ? text.length : end + 1;
    parts.push(text.slice(at, next));
    at = next;
  }
  return parts;
}
