// The input for messages, with what it costs below.
import { useEffect, useRef } from "preact/hooks";

import { Attaching, ClipButton, costOf } from "./attaching";
import type { Chat } from "./chat";
import { CollectionChoice } from "./collection";
import { Icon } from "./icons";
import { Meter } from "./meter";
import { MOST_PASTED } from "./reading";
import { isMute } from "./service";
import { areRead } from "./state";
import { ThinkSwitch } from "./think";
import { isSending, isTouched } from "./touch";

export function Composer({ chat }: { chat: Chat }) {
  const { draft, writing, models, model } = chat.state;
  const box = useRef<HTMLTextAreaElement>(null);
  useEffect(() => {
    const area = box.current;
    if (area === null) return;
    area.style.height = "auto";
    area.style.height = `${Math.min(area.scrollHeight, innerHeight * 0.4)}px`;
  }, [draft]);
  useEffect(() => {
    if (!isTouched()) box.current?.focus();
  }, []);

  const mute = isMute(models, model);
  const mayBeSent = areRead(chat.state) && !costOf(chat.state).isTooLong;
  const send = () => void (mayBeSent && chat.ask(draft));
  const onPaste = (event: ClipboardEvent & { currentTarget: HTMLTextAreaElement }) => {
    const text = event.clipboardData?.getData("text/plain") ?? "";
    const files = [...(event.clipboardData?.files ?? [])];
    if (text.length > MOST_PASTED) chat.files.paste(text, event.currentTarget.selectionStart);
    else if (!text && files.length) chat.files.add(files); // a table that was copied comes as a picture too
    else return;
    event.preventDefault();
  };
  return (
    <form class="composer" onSubmit={(event) => (event.preventDefault(), send())}>
      <Attaching chat={chat} />
      <div class="box">
        <ClipButton chat={chat} disabled={mute} />
        <textarea
          id="message" ref={box} rows={1} dir="auto" aria-label="Message" placeholder="Message…" value={draft} enterkeyhint={isTouched() ? "enter" : "send"}
          disabled={mute} onPaste={onPaste}
          onInput={(event) => chat.draft(event.currentTarget.value)}
          onKeyDown={(event) => {
            if (!isSending(event)) return;
            event.preventDefault();
            send();
          }}
        />
        {writing ? (
          // With keys: the click that stops must not find a button that sends in its place.
          <button key="stop" type="button" class="main round" aria-label="Stop" title="Stop (Escape)" onClick={() => chat.stop()}>
            <Icon name="stop" />
          </button>
        ) : (
          <button key="send" class="main round" aria-label="Send" disabled={!draft.trim() || mute || !mayBeSent} aria-describedby="cost">
            <Icon name="send" />
          </button>
        )}
      </div>
      <div class="row apart small quiet below">
        <ThinkSwitch chat={chat} />
        <CollectionChoice chat={chat} />
        <Meter chat={chat} />
        <span class="hint">Enter sends, Shift+Enter: new line</span>
      </div>
    </form>
  );
}
