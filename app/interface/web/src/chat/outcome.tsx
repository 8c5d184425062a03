// What stands below an answer that is not whole, or below a question that the service has refused: what happened, what to do, and
// when to try again.
import { useEffect, useState } from "preact/hooks";

import { duration } from "../common/words";
import type { Chat } from "./chat";
import type { Failure, Turn } from "./tree";

interface Props {
  chat: Chat;
  turn: Turn;
  isBusy: boolean;
  isLast: boolean;
}

/** A card below an answer that is incomplete. */
export function Outcome({ chat, turn, isBusy, isLast }: Props) {
  const mayGoOn = isLast && turn.text.trim() !== "" && !turn.sources?.length; // it would go on without what was found
  const goOn = mayGoOn && <button disabled={isBusy} onClick={() => void chat.goOn(turn.id)}>Continue</button>;
  const retry = <button disabled={isBusy} onClick={() => void chat.retry(turn.id)}>Retry</button>;
  if (turn.status === "failed") {
    return (
      <FailureCard failure={turn.failure} what={turn.text ? "The answer broke off." : "There is no answer."} isBusy={isBusy} again={() => void chat.retry(turn.id)}>
        {goOn}
      </FailureCard>
    );
  }
  const card = (words: string, ...buttons: unknown[]) => <div class="card"><p>{words}</p>{buttons}</div>;
  if (turn.status === "stopped") {
    if (turn.text.trim()) return isLast ? card("You stopped this answer.", goOn) : null;
    return card(turn.thought ? "You stopped it while it was still thinking." : "Stopped before the answer began.");
  }
  if (turn.status === "part") return card("This answer is not whole: it was stopped or cut, or it broke off.", goOn);
  if (turn.status === "cut") return card(cutBy(turn), goOn || retry);
  return null;
}

/** Why an answer was cut, and what to do. */
export function cutBy({ text, thought, cutBy, usage }: Turn): string {
  const tokens = usage ? `, ${usage.answerTokens.toLocaleString("en")} tokens,` : "";
  const isFull = cutBy === "context";
  const limit = isFull ? "the end of the context" : "the longest answer";
  if (!text.trim() && thought) {
    const what = `It was still thinking when ${limit}${tokens} was reached, so there is no answer.`;
    return isFull ? `${what} Let it think less.` : `${what} Let it think less, or allow a longer answer in the settings.`;
  }
  return isFull ? `Cut where the context ends${tokens.replace(/,$/, "")}.` : `Cut at the longest answer${tokens.replace(/,$/, "")}.`;
}

/** What the service has refused: the question is a draft again. */
export function RefusedCard({ chat, isBusy }: { chat: Chat; isBusy: boolean }) {
  const { refused, draft } = chat.state;
  if (refused === null) return null;
  const isDraft = !refused.question && !refused.goOn;
  const what = refused.goOn ? "The answer could not be continued." : isDraft ? "Your question was not taken; it is in the box below." : "There is no other answer.";
  return <FailureCard failure={refused.failure} what={what} isBusy={isBusy || (isDraft && !draft.trim())} again={() => void chat.again()} />;
}

interface FailureProps {
  failure: Failure | undefined;
  what: string;
  isBusy: boolean;
  again: () => void;
  children?: unknown;
}

function FailureCard({ failure, what, isBusy, again, children }: FailureProps) {
  const waitS = useWait(failure?.retryAtMs ?? 0);
  return (
    <div class="card failed">
      <div class="said" role="alert">
        <p><b>{what}</b></p>
        {failure && <p>{failure.message}</p>}
      </div>
      <div class="row">
        <button disabled={isBusy || waitS > 0} onClick={again}>{waitS > 0 ? `Retry in ${counted(waitS)}` : "Retry"}</button>
        {children}
      </div>
      {failure?.requestId && (
        <details class="small">
          <summary>Details</summary>
          <p>Request <code>{failure.requestId}</code>: whoever runs the service can find it by this.</p>
        </details>
      )}
    </div>
  );
}

/** The seconds until a time, each second anew; 0: it has come. */
function useWait(untilMs: number): number {
  const left = () => Math.max(0, Math.ceil((untilMs - Date.now()) / 1000));
  const [, tick] = useState(0);
  const waitS = left();
  useEffect(() => {
    if (!waitS) return;
    const timer = setTimeout(() => tick((count) => count + 1), Math.min(1000, Math.max(50, untilMs - Date.now())));
    return () => clearTimeout(timer);
  });
  return waitS;
}

/** "12 s", "3 minutes". */
const counted = (seconds: number) => (seconds < 90 ? `${seconds} s` : duration(seconds));
