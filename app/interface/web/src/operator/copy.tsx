// A button that copies an id, and confirms it.
import { useState } from "preact/hooks";

const SAID_FOR_MS = 1500;

export function CopyButton({ text, label }: { text: string; label: string }) {
  const [said, setSaid] = useState("");
  const copy = async () => {
    // A page without TLS has no clipboard.
    const done = await (navigator.clipboard?.writeText(text).then(() => true, () => false) ?? false);
    setSaid(done ? "Copied" : "Select it");
    setTimeout(() => setSaid(""), SAID_FOR_MS);
  };
  return (
    <button class="copy" aria-label={said || label} onClick={() => void copy()}>
      {said || "Copy"}
    </button>
  );
}
