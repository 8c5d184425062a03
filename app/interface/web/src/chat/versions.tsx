// The versions of a question or an answer: <1/2>.
import type { Chat } from "./chat";
import { Icon } from "./icons";

export function Versions({ chat, id, place, count, isBusy }: { chat: Chat; id: string; place: number; count: number; isBusy: boolean }) {
  if (count < 2) return null;
  const of = chat.state.tree.turns[id]?.parent || "the first";
  return (
    <span class="versions" data-id={`versions ${of}`} role="group" aria-label="Versions">
      <button class="bare" data-id={`previous ${of}`} aria-label="Previous version" disabled={isBusy || place === 0} onClick={() => chat.show(id, -1)}>
        <Icon name="left" />
      </button>
      {`${place + 1}/${count}`}
      <button class="bare" data-id={`next ${of}`} aria-label="Next version" disabled={isBusy || place === count - 1} onClick={() => chat.show(id, 1)}>
        <Icon name="right" />
      </button>
    </span>
  );
}
