// An answer: the thought, the text, its state, and its actions.
import { memo } from "preact/compat";
import { useEffect, useState } from "preact/hooks";

import type { Chat } from "./chat";
import { CopyButton } from "./copy";
import { Icon } from "./icons";
import type { Progress, Turn } from "./tree";
import { Versions } from "./versions";

interface Props {
  chat: Chat;
  turn: Turn;
  place: number;
  count: number;
  isBusy: boolean;
  isLast: boolean;
}

export const Answer = memo(function Answer({ chat, turn, place, count, isBusy, isLast }: Props) {
  const isOpen = ["waiting", "reading", "writing"].includes(turn.status);
  return (
    <article class="answer" aria-label="Answer" aria-busy={isOpen} data-status={turn.status}>
      {turn.thought && <Thought text={turn.thought} turn={turn} isThinking={isOpen && turn.text === ""} />}
      <div class="body">
        <Text text={turn.text} isGrowing={isOpen} />
      </div>
      {isOpen && turn.text === "" && !turn.thought && <Waiting turn={turn} />}
      <Outcome chat={chat} turn={turn} isBusy={isBusy} isLast={isLast} />
      {!isOpen && (
        <div class="tools">
          {turn.text && <CopyButton text={() => turn.text.trim()} />}
          <button class="bare" aria-label="Retry" title="Another answer" disabled={isBusy} onClick={() => void chat.retry(turn.id)}>
            <Icon name="retry" />
          </button>
          <Versions chat={chat} id={turn.id} place={place} count={count} isBusy={isBusy} />
          <span class="quiet small">{speed(turn)}</span>
        </div>
      )}
    </article>
  );
});

let Markdown: typeof import("./text").Markdown | null = null;

/** An answer's plain text until the Markdown parser is loaded, which is fetched with the first answer. */
function Text({ text, isGrowing }: { text: string; isGrowing: boolean }) {
  const [, redraw] = useState(Markdown !== null);
  useEffect(() => {
    if (Markdown !== null) return;
    import("./text").then((loaded) => {
      ({ Markdown } = loaded);
      redraw(true);
    }, () => undefined); // of a service that has another build by now
  }, []);
  return Markdown === null ? <div class="plain">{text}</div> : <Markdown text={text} isGrowing={isGrowing} />;
}

/** What an empty answer is waiting for. Screen readers read it whenever it changes, so the percentage is not in it. */
export function waits(turn: Turn): string {
  if (turn.status === "waiting") return "Waiting for a place";
  const ahead = turn.progress?.ahead ?? null;
  if (ahead === null) return "Reading the prompt";
  return ahead ? `Queued, ${ahead} ahead` : "Queued, next in line";
}

/** The processed share of the prompt. */
export function percent({ done, total }: Progress): number {
  return Math.floor((100 * done) / Math.max(total, 1));
}

/** What is happening before the first token, and for how long. */
function Waiting({ turn }: { turn: Turn }) {
  const [, tick] = useState(0);
  useEffect(() => {
    const timer = setInterval(() => tick((count) => count + 1), 1000);
    return () => clearInterval(timer);
  }, []);
  const seconds = Math.floor((Date.now() - turn.askedAtMs) / 1000);
  return (
    <p class="waiting quiet" role="status">
      <span class="pulse" aria-hidden="true" />
      {waits(turn)}
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
      <summary>{isThinking ? "Thinking…" : time}</summary>
      <div class="quiet">{text}</div>
    </details>
  );
}

/** A card below an answer that is incomplete. */
function Outcome({ chat, turn, isBusy, isLast }: { chat: Chat; turn: Turn; isBusy: boolean; isLast: boolean }) {
  const retry = <button disabled={isBusy} onClick={() => void chat.retry(turn.id)}>Retry</button>;
  if (turn.status === "failed") {
    return (
      <div class="card failed" role="alert">
        <p>{turn.text ? "The answer broke off." : "There is no answer."} {turn.failure?.message}</p>
        {turn.failure?.requestId && <p class="small">Request <code>{turn.failure.requestId}</code></p>}
        {retry}
        {isLast && turn.text && <button disabled={isBusy} onClick={() => void chat.goOn(turn.id)}>Continue</button>}
      </div>
    );
  }
  if (turn.status === "stopped" && !turn.text.trim()) return <div class="card"><p>Stopped before the answer began.</p></div>;
  if (turn.status === "part") {
    return (
      <div class="card">
        <p>This answer is not whole: it was stopped or cut, or it broke off.</p>
        {isLast && <button disabled={isBusy} onClick={() => void chat.goOn(turn.id)}>Continue</button>}
      </div>
    );
  }
  if (turn.status === "cut") {
    return (
      <div class="card">
        <p>Cut at the longest answer{turn.usage ? `, ${turn.usage.answerTokens.toLocaleString("en")} tokens` : ""}.</p>
        {!turn.text && retry}
        {isLast && turn.text && <button disabled={isBusy} onClick={() => void chat.goOn(turn.id)}>Continue</button>}
      </div>
    );
  }
  return null;
}

/** "312 tokens, 18 tokens/s". */
export function speed(turn: Turn): string {
  const tokens = turn.usage?.answerTokens;
  if (!tokens) return turn.status === "stopped" && turn.text ? "Stopped" : "";
  const seconds = (turn.endedAtMs - turn.firstAtMs) / 1000;
  const rate = tokens > 1 && turn.firstAtMs && seconds > 0.05 ? `, ${Number(((tokens - 1) / seconds).toPrecision(2))} tokens/s` : "";
  return `${tokens.toLocaleString("en")} tokens${rate}`;
}
