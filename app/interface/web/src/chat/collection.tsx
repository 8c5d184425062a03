// In which collection of documents is searched before an answer. Kept with the chat.
import type { Chat } from "./chat";
import type { Collection } from "./service";

/** Its name, and what of it can't be found yet. */
const called = ({ name, file_counts }: Collection): string =>
  `${name || "Unnamed"}${file_counts.in_progress ? ` (${file_counts.in_progress} being read)` : ""}`;

export function CollectionChoice({ chat }: { chat: Chat }) {
  const { collections, knobs, isTemporary, user } = chat.state;
  if (user === null || isTemporary || (!collections.length && !knobs.collection)) return null;
  const isThere = !knobs.collection || collections.some((one) => one.id === knobs.collection);
  return (
    <label class="think" title="Answers are found in these documents, and cite them">
      Ask:
      <select
        aria-label="Collection" value={knobs.collection}
        onFocus={() => void chat.loadCollections()} onChange={(event) => chat.change({ collection: event.currentTarget.value })}
      >
        <option value="">no documents</option>
        {!isThere && <option value={knobs.collection}>{collections.length ? "a deleted collection" : "a collection"}</option>}
        {collections.map((one) => <option key={one.id} value={one.id}>{called(one)}</option>)}
      </select>
    </label>
  );
}
