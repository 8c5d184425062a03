// Another answer to the same question, by the chat's model or by another one.
import { useState } from "preact/hooks";

import type { Chat } from "./chat";
import { Icon } from "./icons";
import { canChat } from "./service";
import type { Turn } from "./tree";

export function Retry({ chat, turn, isBusy }: { chat: Chat; turn: Turn; isBusy: boolean }) {
  const [isOpen, setOpen] = useState(false);
  const others = chat.state.models.filter((one) => canChat(one) && one.id !== (turn.model || chat.state.model));
  return (
    <>
      <button class="bare" aria-label="Retry" title="Another answer" disabled={isBusy} onClick={() => void chat.retry(turn.id)}>
        <Icon name="retry" />
      </button>
      {others.length > 0 && (
        <details
          class="others" open={isOpen} onToggle={(event) => setOpen(event.currentTarget.open)}
          onBlur={(event) => !event.currentTarget.contains(event.relatedTarget as Node | null) && setOpen(false)}
          onKeyDown={(event) => {
            if (event.key !== "Escape" || !isOpen) return;
            event.stopPropagation();
            setOpen(false);
            event.currentTarget.querySelector("summary")?.focus();
          }}
        >
          <summary class="bare" aria-label="Retry with another model" title="Retry with another model"><Icon name="open" /></summary>
          {isOpen && (
            <div class="menu">
              {others.map((one) => (
                <button key={one.id} disabled={isBusy} onClick={() => (setOpen(false), void chat.retry(turn.id, one.id))}>{one.id}</button>
              ))}
            </div>
          )}
        </details>
      )}
    </>
  );
}
