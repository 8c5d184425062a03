// A question of the user, and its editor.
import { memo } from "preact/compat";
import { useLayoutEffect, useRef, useState } from "preact/hooks";

import type { Chat } from "./chat";
import { CopyButton } from "./copy";
import { FileChips } from "./chips";
import { Icon } from "./icons";
import { isSending } from "./touch";
import type { Turn } from "./tree";
import { Versions } from "./versions";

interface Props {
  chat: Chat;
  turn: Turn;
  place: number;
  count: number;
  isBusy: boolean;
}

export const Question = memo(function Question({ chat, turn, place, count, isBusy }: Props) {
  const [text, setText] = useState<string | null>(null);
  const editor = useRef<HTMLTextAreaElement>(null);
  const isEditing = text !== null;
  useLayoutEffect(() => {
    editor.current?.focus();
    editor.current?.setSelectionRange(-1, -1);
  }, [isEditing]);
  if (text !== null) {
    const done = () => (setText(null), void chat.edit(turn.id, text));
    return (
      <form class="question editing" onSubmit={(event) => (event.preventDefault(), done())}>
        <FileChips files={turn.files} view={(file) => chat.set({ viewed: file })} />
        <textarea
          aria-label="Edit the question" dir="auto" ref={editor} data-id={`edit ${turn.id}`} rows={Math.min(12, text.split("\n").length + 1)} value={text}
          onInput={(event) => setText(event.currentTarget.value)}
          onKeyDown={(event) => {
            if (event.key === "Escape") {
              event.stopPropagation(); // an answer that is being written goes on
              setText(null);
            }
            if (!isSending(event)) return;
            event.preventDefault();
            done();
          }}
        />
        <div class="row">
          <button class="main" disabled={!text.trim() || isBusy}>Ask again</button>
          <button type="button" data-id={`edit ${turn.id}`} onClick={() => setText(null)}>Cancel</button>
        </div>
      </form>
    );
  }
  return (
    <article class="question" aria-label="You asked">
      <FileChips files={turn.files} view={(file) => chat.set({ viewed: file })} />
      <div class="bubble" dir="auto">{turn.text}</div>
      <div class="tools">
        <button class="bare" aria-label="Edit" title="Edit" data-id={`edit ${turn.id}`} disabled={isBusy} onClick={() => setText(turn.text)}>
          <Icon name="edit" />
        </button>
        <CopyButton text={() => turn.text} />
        <Versions chat={chat} id={turn.id} place={place} count={count} isBusy={isBusy} />
      </div>
    </article>
  );
});
