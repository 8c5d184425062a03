// Conversations: a new one, a search, and the list by day.
import { useState } from "preact/hooks";

import type { Chat } from "./chat";
import { Icon } from "./icons";
import type { Entry } from "./shelf";

interface Props {
  chat: Chat;
  close: () => void;
  openSettings: () => void;
}

export function Sidebar({ chat, close, openSettings }: Props) {
  const { entries, words } = chat.state;
  const groups = grouped(entries);
  return (
    <nav class="sidebar" aria-label="Conversations">
      <div class="row apart">
        <span class="brand">Redoubt</span>
        <button class="new" onClick={() => (chat.newChat(), close(), focusComposer())}>
          <Icon name="plus" /> New chat
        </button>
      </div>
      <input
        id="search" type="search" placeholder="Search  (Ctrl+K)" aria-label="Search conversations" value={words}
        onInput={(event) => void chat.list(event.currentTarget.value)}
      />
      <div class="list">
        {groups.map(([day, ones]) => (
          <section key={day} aria-label={day}>
            <h2>{day}</h2>
            <ul>
              {ones.map((one) => (
                <Row key={one.id} chat={chat} entry={one} close={close} />
              ))}
            </ul>
          </section>
        ))}
        {entries.length === 0 && <p class="quiet small">{words ? "Nothing found." : "Your chats of this tab will be here."}</p>}
      </div>
      <button class="bare wide" onClick={() => (close(), openSettings())}>
        <Icon name="settings" /> Settings
      </button>
      {chat.state.user && (
        <div class="row apart account">
          <a href="/account">{chat.state.user.name}</a>
          <button class="bare" onClick={() => void chat.signOut()}>Sign out</button>
        </div>
      )}
    </nav>
  );
}

function Row({ chat, entry, close }: { chat: Chat; entry: Entry; close: () => void }) {
  const [title, setTitle] = useState<string | null>(null);
  const isOpen = chat.state.id === entry.id;
  if (title !== null) {
    return (
      <li>
        <form class="rename" onSubmit={(event) => (event.preventDefault(), setTitle(null), void chat.rename(entry, title))}>
          <input
            aria-label="Title" value={title} autofocus maxLength={120}
            onInput={(event) => setTitle(event.currentTarget.value)}
            onKeyDown={(event) => event.key === "Escape" && (event.stopPropagation(), setTitle(null))}
          />
          <button class="bare" aria-label="Keep the title"><Icon name="check" /></button>
        </form>
      </li>
    );
  }
  return (
    <li class={isOpen ? "here" : ""}>
      <button class="title" aria-current={isOpen ? "page" : undefined} onClick={() => (void chat.open(entry.id), close())}>
        {entry.title}
      </button>
      <details
        onToggle={(event) => event.currentTarget.open && event.currentTarget.querySelector("button")?.focus()}
        onBlur={(event) => {
          if (!event.currentTarget.contains(event.relatedTarget as Node | null)) event.currentTarget.open = false;
        }}
      >
        <summary class="bare" aria-label={`Menu of ${entry.title}`}><Icon name="more" /></summary>
        <div class="menu">
          <button onClick={() => setTitle(entry.title)}>Rename</button>
          <button onClick={() => void chat.pin(entry)}>{entry.isPinned ? "Unpin" : "Pin"}</button>
          <button class="bad" onClick={() => void chat.remove(entry.id)}>Delete</button>
        </div>
      </details>
    </li>
  );
}

/** Pinned ones, then by day; the newest first. */
export function grouped(entries: Entry[], nowMs = Date.now()): [string, Entry[]][] {
  const groups = new Map<string, Entry[]>();
  const today = new Date(nowMs).setHours(0, 0, 0, 0);
  const add = (name: string, one: Entry) => groups.set(name, [...(groups.get(name) ?? []), one]);
  for (const one of entries) if (one.isPinned) add("Pinned", one);
  for (const one of entries) {
    if (one.isPinned) continue;
    const days = Math.ceil((today - one.updatedAtMs) / 86_400_000);
    add(days <= 0 ? "Today" : days === 1 ? "Yesterday" : days <= 7 ? "Last 7 days" : "Earlier", one);
  }
  return [...groups];
}

export function focusComposer(): void {
  document.getElementById("message")?.focus();
}
