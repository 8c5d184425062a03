// The user's stored conversations: exports them, deletes one, or everything stored.
import { useEffect, useState } from "preact/hooks";

import { useAction } from "../common/action";
import { type ListPart, call } from "../common/api";
import { saveConversation } from "../common/download";
import { Confirm } from "../common/confirm";
import { counted, day } from "../common/numbers";
import { Told } from "../common/told";

/** The service brings a deleted conversation back a little longer. */
const UNDO_MS = 10_000;

interface Conversation {
  id: string;
  title: string;
  updated_at: number;
  items: number;
}

export function Conversations() {
  const [shown, setShown] = useState<Conversation[]>([]);
  const [hasMore, setHasMore] = useState(false);
  const [isAsking, setAsking] = useState(false);
  const { isBusy, outcome, run, dismiss } = useAction();

  async function look(before: Conversation[]) {
    const after = before.length ? `&after=${encodeURIComponent(before[before.length - 1]!.id)}` : "";
    const page = await call<ListPart<Conversation>>("GET", `/v1/conversations?limit=10${after}`);
    setShown([...before, ...page.data]);
    setHasMore(page.has_more);
  }
  const more = (before: Conversation[]) =>
    run(async () => {
      await look(before);
      return "";
    });
  useEffect(() => {
    void more([]);
  }, []);

  const remove = (conversation: Conversation) =>
    run(async () => {
      await call("DELETE", `/v1/conversations/${encodeURIComponent(conversation.id)}?undo=true`);
      setShown((shown) => shown.filter((one) => one.id !== conversation.id));
      return { text: `Deleted: ${titleOf(conversation)}.`, undo: () => void restore(conversation), forMs: UNDO_MS };
    });
  const restore = (conversation: Conversation) =>
    run(async () => {
      await call("POST", `/v1/conversations/${encodeURIComponent(conversation.id)}/restore`);
      setShown((shown) => [...shown, conversation].sort((one, other) => other.updated_at - one.updated_at));
      return `It is back: ${titleOf(conversation)}.`;
    });
  const save = (conversation: Conversation, kind: "md" | "json") =>
    run(async () => {
      await saveConversation(conversation.id, kind);
      return "";
    });
  const removeAll = () =>
    run(async () => {
      setAsking(false);
      const gone = await call<{ conversations: number; unacknowledged: number }>("DELETE", "/v1/conversations");
      await look([]);
      const rest = gone.unacknowledged ? ` ${counted(gone.unacknowledged, "worker")} did not answer.` : "";
      return `${counted(gone.conversations, "conversation")} deleted, and the keys of all your saved pages.${rest}`;
    });

  return (
    <section class="card" aria-labelledby="conversations">
      <h2 id="conversations">Conversations</h2>
      {shown.length === 0 && <p class="quiet small">None is stored.</p>}
      <ul>
        {shown.map((one) => (
          <li class="row apart" key={one.id}>
            <span>
              {titleOf(one)}
              <br />
              <span class="quiet small">
                {day(one.updated_at)}, {counted(one.items, "item")}, export as{" "}
                <button class="link" aria-label={`Export ${titleOf(one)} as Markdown`} onClick={() => save(one, "md")}>Markdown</button> or{" "}
                <button class="link" aria-label={`Export ${titleOf(one)} as JSON`} onClick={() => save(one, "json")}>JSON</button>
              </span>
            </span>
            <button class="bad" aria-label={`Delete ${titleOf(one)}`} aria-disabled={isBusy} onClick={() => remove(one)}>Delete</button>
          </li>
        ))}
      </ul>
      {isAsking ? (
        <Confirm
          of="delete"
          label="Delete everything"
          yes="Delete everything"
          no="Keep everything"
          isBusy={isBusy}
          onYes={removeAll}
          onNo={() => setAsking(false)}
        >
          This deletes all your conversations, stored answers and files, and destroys the keys of your collections and of all your saved pages. It cannot be undone.
        </Confirm>
      ) : (
        <div class="row">
          {hasMore && <button aria-disabled={isBusy} onClick={() => more(shown)}>Show more</button>}
          <button class="bad" data-id="delete" aria-disabled={isBusy} onClick={() => setAsking(true)}>Delete everything…</button>
        </div>
      )}
      <Told outcome={outcome} dismiss={dismiss} />
    </section>
  );
}

function titleOf(conversation: Conversation): string {
  return conversation.title || "Without a title";
}
