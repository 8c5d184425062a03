// An answer: the thought, the text, its state, and its actions.
import { memo } from "preact/compat";
import { useEffect, useState } from "preact/hooks";

import type { Chat } from "./chat";
import { CopyButton } from "./copy";
import { placeOf } from "./files";
import { Outcome } from "./outcome";
import { Retry } from "./retry";
import type { Progress, Source, Turn } from "./tree";
import { Versions } from "./versions";

interface Props {
  chat: Chat;
  turn: Turn;
  place: number;
  count: number;
  isBusy: boolean;
  isLast: boolean;
  /** Whether the service is there. */
  isReachable: boolean;
}

export const Answer = memo(function Answer({ chat, turn, place, count, isBusy, isLast, isReachable }: Props) {
  const isOpen = ["waiting", "reading", "writing"].includes(turn.status);
  return (
    <article class="answer" aria-label="Answer" aria-busy={isOpen} data-status={turn.status}>
      {turn.thought && <Thought text={turn.thought} turn={turn} isThinking={isOpen && turn.text === ""} />}
      <div class="body">
        <Text text={turn.text} isGrowing={isOpen} sources={turn.sources} view={(source) => chat.set({ viewed: { name: placeOf(source), pages: null, text: source.text } })} />
      </div>
      {isOpen && turn.text === "" && !turn.thought && <Waiting turn={turn} isReachable={isReachable} />}
      <Outcome chat={chat} turn={turn} isBusy={isBusy} isLast={isLast} />
      {!isOpen && (
        <div class="tools">
          {turn.text && <CopyButton text={() => turn.text.trim()} />}
          <Retry chat={chat} turn={turn} isBusy={isBusy} />
          <Versions chat={chat} id={turn.id} place={place} count={count} isBusy={isBusy} />
          <span class="quiet small">{[turn.model, speed(turn)].filter(Boolean).join(", ")}</span>
        </div>
      )}
    </article>
  );
});

let Markdown: typeof import("./text").Markdown | null = null;

/** An answer's plain text until the Markdown parser is loaded, which is fetched with the first answer. */
function Text({ text, isGrowing, sources, view }: { text: string; isGrowing: boolean; sources: Source[] | undefined; view: (source: Source) => void }) {
  const [, redraw] = useState(Markdown !== null);
  useEffect(() => {
    if (Markdown !== null) return;
    import("./text").then((loaded) => {
      ({ Markdown } = loaded);
      redraw(true);
    }, () => undefined); // of a service that has another build by now
  }, []);
  return Markdown === null ? <div class="plain">{text}</div> : <Markdown text={text} isGrowing={isGrowing} sources={sources} view={view} />;
}

/** What an empty answer is waiting for. Screen readers read it whenever it changes, so the percentage is not in it. */
export function waits(turn: Turn, isReachable = true): string {
  if (turn.status === "waiting") return isReachable ? "Waiting for a place" : "Waiting for the service";
  const ahead = turn.progress?.ahead ?? null;
  if (ahead === null) return "Reading the prompt";
  return ahead ? `Queued, ${ahead} ahead` : "Queued, next in line";
}

/** The processed share of the prompt. */
export function percent({ done, total }: Progress): number {
  return Math.floor((100 * done) / Math.max(total, 1));
}

/** What is happening before the first token, and for how long. */
function Waiting({ turn, isReachable }: { turn: Turn; isReachable: boolean }) {
  const [, tick] = useState(0);
  useEffect(() => {
    const timer = setInterval(() => tick((count) => count + 1), 1000);
    return () => clearInterval(timer);
  }, []);
  const seconds = Math.floor((Date.now() - turn.askedAtMs) / 1000);
  return (
    <p class="waiting quiet">
      <span class="pulse" aria-hidden="true" />
      {waits(turn, isReachable)}
      {turn.progress?.ahead === null && <span aria-hidden="true">{`, ${percent(turn.progress)} %`}</span>}
      {seconds > 1 && <span aria-hidden="true">{`, ${seconds} s`}</span>}
    </p>
  );
}

function Thought({ text, turn, isThinking }: { text: string; turn: Turn; isThinking: boolean }) {
  const seconds = Math.max(1, Math.round((turn.thoughtUntilMs - turn.firstAtMs) / 1000));
  const time = turn.thoughtUntilMs && turn.firstAtMs ? `Thought for ${seconds} s` : "Thought";
  return (
    <details class="thought">
      <summary>{isThinking ? "Thinking…" : turn.isThoughtCut ? `${time}, as long as it may` : time}</summary>
      <div class="quiet">{text}</div>
    </details>
  );
}

/** "312 tokens, 18 tokens/s". */
export function speed(turn: Turn): string {
  const tokens = turn.usage?.answerTokens;
  if (!tokens) return "";
  const seconds = (turn.endedAtMs - turn.firstAtMs) / 1000;
  const rate = tokens > 1 && turn.firstAtMs && seconds > 0.05 ? `, ${Number(((tokens - 1) / seconds).toPrecision(2))} tokens/s` : "";
  return `${tokens.toLocaleString("en")} tokens${rate}`;
}
