// The generation settings of the open chat, which are sent with each question. An empty field leaves it to the model.
import { useLayoutEffect, useRef } from "preact/hooks";

import type { Chat } from "./chat";
import type { Knobs } from "./service";
import { path } from "./tree";

export function Settings({ chat, close }: { chat: Chat; close: () => void }) {
  const dialog = useRef<HTMLDialogElement>(null);
  // At once: one that is closed before it was shown would be shown afterwards.
  useLayoutEffect(() => dialog.current?.showModal(), []);
  const { knobs, models, model, key, user, tree } = chat.state;
  const sampling = models.find((one) => one.id === model)?.sampling;
  const usual = (value: number | null | undefined, off: string) => `The model's: ${value ?? off}`;
  const number = (name: keyof Omit<Knobs, "system" | "think">, label: string, hint: string, most: number, step: number, least = 0) => (
    <label>
      {label}
      <input
        type="number" inputMode="decimal" min={least} max={most} step={step} placeholder={hint} value={knobs[name] ?? ""}
        onInput={(event) => {
          const { value, validity, valueAsNumber } = event.currentTarget;
          if (validity.valid) chat.change({ [name]: value === "" ? null : valueAsNumber });
        }}
      />
    </label>
  );
  return (
    <dialog ref={dialog} class="settings" aria-labelledby="settings-title" onClose={close}>
      <form method="dialog">
        <div>
          <h2 id="settings-title">Settings</h2>
          <p class="quiet small">{path(tree).length ? "Of this chat." : "Of this chat, and of those that you begin after it."}</p>
        </div>
        <label>
          System prompt
          <textarea rows={3} value={knobs.system} onInput={(event) => chat.change({ system: event.currentTarget.value })} />
        </label>
        <div class="pair">
          {number("temperature", "Temperature", usual(sampling?.temperature, "1"), 2, 0.05)}
          {number("topP", "Top-p", usual(sampling?.top_p, "1"), 1, 0.01)}
          {number("maxTokens", "Longest answer, in tokens", "The service's own", 1_000_000, 1, 1)}
          {number("seed", "Seed", "Random", 2 ** 31 - 1, 1)}
        </div>
        {!user && (
          <label>
            API key
            <input type="password" autocomplete="off" value={key} placeholder="If the service asks for one; stays in this tab"
              onChange={(event) => void chat.useKey(event.currentTarget.value.trim())} />
          </label>
        )}
        <div class="pair">
          <label>
            Import chats
            <input
              type="file" accept=".json,application/json"
              onChange={(event) => {
                const file = event.currentTarget.files?.[0];
                dialog.current?.close();
                if (file) void chat.conversations.takeIn(file);
              }}
            />
          </label>
          {!user && (
            <label class="check" title="Anyone who uses this browser can read them.">
              <input type="checkbox" checked={chat.state.isKept} onChange={(event) => chat.conversations.keepHere(event.currentTarget.checked)} />
              Keep my chats in this browser
            </label>
          )}
        </div>
        <button class="main">Done</button>
      </form>
    </dialog>
  );
}
