// Copies a text, and confirms it.
import { useState } from "preact/hooks";

import { Icon } from "./icons";

const SAID_FOR_MS = 1500;

export function CopyButton({ text, label }: { text: () => string; label?: string }) {
  const [isDone, setDone] = useState(false);
  const copy = async () => {
    await copied(text());
    setDone(true);
    setTimeout(() => setDone(false), SAID_FOR_MS);
  };
  return (
    <button class="bare" aria-label={isDone ? "Copied" : "Copy"} title="Copy" onClick={() => void copy()}>
      <Icon name={isDone ? "check" : "copy"} />
      {label && <span>{isDone ? "Copied" : label}</span>}
    </button>
  );
}

async function copied(text: string): Promise<void> {
  if (navigator.clipboard) return navigator.clipboard.writeText(text);
  // Over plain HTTP browsers have no clipboard for scripts.
  const area = document.createElement("textarea");
  area.value = text;
  document.body.append(area);
  area.select();
  document.execCommand("copy");
  area.remove();
}
