// What a screen reader says of an answer: what it waits for, and once its text and end when it is whole. The region is always
// there, as readers do not notice one that comes with its text.
import { useEffect, useRef, useState } from "preact/hooks";

import { waits } from "./answer";
import type { Chat } from "./chat";

export function Aloud({ chat }: { chat: Chat }) {
  const { writing, tree } = chat.state;
  const turn = tree.turns[writing];
  const [end, setEnd] = useState("");
  const before = useRef("");
  useEffect(() => {
    const ended = chat.state.tree.turns[before.current];
    before.current = writing;
    if (writing) setEnd("");
    else if (ended?.status === "stopped") setEnd("Stopped.");
    else if (ended?.status === "done" || ended?.status === "cut") {
      const last = ended.status === "cut" ? "The answer was cut here." : "End of the answer.";
      const say = () => setTimeout(() => before.current === writing && setEnd(`${spoken()} ${last}`));
      import("./text").then(say, say); // the first answer is not drawn before
    }
  }, [writing]);
  const isEmpty = turn !== undefined && turn.text === "" && !turn.thought;
  return <div class="aloud" role="status">{turn === undefined ? end : isEmpty ? waits(turn) : ""}</div>;
}

/** The last answer's text as it stands on the page, without what is written twice or is a button. */
function spoken(): string {
  const body = [...document.querySelectorAll(".answer .body")].at(-1)?.cloneNode(true) as Element | undefined;
  for (const one of body?.querySelectorAll("figcaption, .katex-html, [role=doc-backlink]") ?? []) one.remove();
  for (const one of body?.querySelectorAll("p, li, th, td, pre, summary, h1, h2, h3, h4, h5, h6") ?? []) one.append(" ");
  for (const one of body?.querySelectorAll("br") ?? []) one.replaceWith(" ");
  return body?.textContent?.replace(/\s+/g, " ").trim() ?? "";
}
