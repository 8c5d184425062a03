// The input for messages, and the remaining context.
import { useEffect, useRef } from "preact/hooks";

import type { Chat } from "./chat";
import { Icon } from "./icons";
import { isMute } from "./service";
import { path } from "./tree";

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
    if (matchMedia("(pointer: fine)").matches) box.current?.focus();
  }, []);

  const send = () => void chat.ask(draft);
  return (
    <form class="composer" onSubmit={(event) => (event.preventDefault(), send())}>
      <div class="box">
        <textarea
          id="message" ref={box} rows={1} aria-label="Message" placeholder="Message…" value={draft} enterkeyhint="send"
          disabled={isMute(models, model)}
          onInput={(event) => chat.draft(event.currentTarget.value)}
          onKeyDown={(event) => {
            if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
            event.preventDefault();
            send();
          }}
        />
        {writing ? (
          <button type="button" class="main round" aria-label="Stop" title="Stop (Escape)" onClick={() => chat.stop()}>
            <Icon name="stop" />
          </button>
        ) : (
          <button class="main round" aria-label="Send" disabled={!draft.trim() || isMute(models, model)}>
            <Icon name="send" />
          </button>
        )}
      </div>
      <div class="row apart small quiet below">
        <Meter chat={chat} />
        <span class="hint">Enter sends, Shift+Enter: new line</span>
      </div>
    </form>
  );
}

/** How much of the context the conversation uses, and how much of that was cached. */
function Meter({ chat }: { chat: Chat }) {
  const { tree, models, model } = chat.state;
  const usage = path(tree).filter((one) => one.usage).at(-1)?.usage;
  const size = models.find((one) => one.id === model)?.max_context_tokens;
  if (!usage || !size) return <span />;
  const used = usage.promptTokens + usage.answerTokens;
  const remembered = usage.rememberedTokens ? `, ${short(usage.rememberedTokens)} remembered` : "";
  return (
    <span class="meter" title={`${used.toLocaleString("en")} of ${size.toLocaleString("en")} tokens`}>
      <progress aria-label="Context used" max={size} value={used} />
      {`${short(used)}/${Math.round(size / 1024)}k${remembered}`}
    </span>
  );
}

/** "312", "1.2k", "128k". */
export function short(tokens: number): string {
  if (tokens < 1000) return String(tokens);
  const thousands = tokens / 1000;
  return `${thousands < 10 ? Number(thousands.toFixed(1)) : Math.round(thousands)}k`;
}
