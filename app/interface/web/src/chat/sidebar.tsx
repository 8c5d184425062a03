// The conversations: a new one, a search, and the list by day.
import { useEffect, useLayoutEffect, useRef, useState } from "preact/hooks";

import { bytes } from "../common/numbers";
import type { Chat } from "./chat";
import { Icon } from "./icons";
import { List, onSearchKey } from "./list";
import { ask } from "./service";
import type { Entry } from "./shelf";

interface Props {
  chat: Chat;
  close: () => void;
  openSettings: () => void;
}

export function Sidebar({ chat, close, openSettings }: Props) {
  const { entries, words, user, leaving, isTemporary } = chat.state;
  return (
    <nav class="sidebar" aria-label="Conversations">
      <div class="row apart">
        <span class="brand">Redoubt</span>
        <button class="new" onClick={() => (chat.newChat(), close(), focusComposer())}>
          <Icon name="plus" /> New chat
        </button>
      </div>
      {user && (
        <label class="check">
          <input type="checkbox" checked={isTemporary} onChange={(event) => chat.setTemporary(event.currentTarget.checked)} />
          Temporary chat
        </label>
      )}
      <input
        id="search" type="search" placeholder="Search  (Ctrl+K)" aria-label="Search conversations" value={words}
        onInput={(event) => chat.conversations.search(event.currentTarget.value)} onKeyDown={onSearchKey}
      />
      <List
        chat={chat} row={(one) => <Row key={one.id} chat={chat} entry={one} close={close} />}
        empty={words ? "Nothing found." : user ? "Your chats will be here." : "Your chats of this tab will be here."}
      />
      {leaving && (
        <div class="card undo" role="status">
          <p>Deleted.</p>
          <button onClick={() => void chat.conversations.undo().then(() => focusMenu(leaving.id))}>Undo</button>
        </div>
      )}
      {user && <Memory count={entries.length} />}
      <button class="bare wide" onClick={() => (close(), openSettings())}>
        <Icon name="settings" /> Settings
      </button>
      {chat.state.user && (
        <div class="row apart account">
          <a href="/account">{chat.state.user.name}</a>
          {chat.state.user.role === "admin" && <a href="/operator">Operator</a>}
          <button class="bare" onClick={() => void chat.signOut()}>Sign out</button>
        </div>
      )}
    </nav>
  );
}

function Row({ chat, entry, close }: { chat: Chat; entry: Entry; close: () => void }) {
  const [title, setTitle] = useState<string | null>(null);
  const titleBox = useRef<HTMLInputElement>(null);
  const isNaming = title !== null;
  useLayoutEffect(() => {
    titleBox.current?.focus();
    titleBox.current?.select();
  }, [isNaming]);
  const isOpen = chat.state.id === entry.id;
  if (title !== null) {
    return (
      <li>
        <form class="rename" onSubmit={(event) => (event.preventDefault(), setTitle(null), void chat.conversations.rename(entry, title))}>
          <input
            aria-label="Title" value={title} ref={titleBox} data-id={`menu ${entry.id}`} maxLength={120}
            onInput={(event) => setTitle(event.currentTarget.value)}
            onKeyDown={(event) => event.key === "Escape" && (event.stopPropagation(), setTitle(null))}
          />
          <button class="bare" aria-label="Rename"><Icon name="check" /></button>
        </form>
      </li>
    );
  }
  return (
    <li class={`${isOpen ? "here" : ""}${entry.passage ? " found" : ""}`}>
      <button class="title" title={entry.title} aria-current={isOpen ? "page" : undefined} onClick={() => (void chat.visit(entry.id), close())}>
        {entry.isAnswering && <span class="pulse" role="img" aria-label="Being answered" />}
        {entry.title}
        {entry.passage && <small class="quiet">{entry.passage}</small>}
      </button>
      <details
        onToggle={(event) => event.currentTarget.open && event.currentTarget.querySelector("button")?.focus()}
        onBlur={(event) => {
          if (!event.currentTarget.contains(event.relatedTarget as Node | null)) event.currentTarget.open = false;
        }}
        onKeyDown={(event) => {
          if (event.key !== "Escape" || !event.currentTarget.open) return;
          event.stopPropagation(); // what else Escape ends goes on
          event.currentTarget.open = false;
          event.currentTarget.querySelector("summary")?.focus();
        }}
      >
        <summary class="bare" data-id={`menu ${entry.id}`} aria-label={`Menu of ${entry.title}`}><Icon name="more" /></summary>
        <div class="menu">
          <button data-id={`menu ${entry.id}`} onClick={() => setTitle(entry.title)}>Rename</button>
          <button data-id={`menu ${entry.id}`} onClick={() => void chat.conversations.pin(entry)}>{entry.isPinned ? "Unpin" : "Pin"}</button>
          <button onClick={() => void chat.conversations.saveAs(entry, "md")}>Export as text</button>
          <button onClick={() => void chat.conversations.saveAs(entry, "json")}>Export as JSON</button>
          <button class="bad" onClick={() => void chat.conversations.remove(entry)}>Delete</button>
        </div>
      </details>
    </li>
  );
}

/** The size of the user's saved KV pages; nothing if none are saved. It is loaded only if there is a chat. */
function Memory({ count }: { count: number }) {
  const [use, setUse] = useState<{ bytes: number; quota_bytes: number } | null>(null);
  const [isKept, setKept] = useState(true);
  useEffect(() => {
    if (isKept && count) ask<{ bytes: number; quota_bytes: number }>("GET", "/v1/memory").then(setUse, () => setKept(false));
  }, [count, isKept]);
  if (use === null) return null;
  return (
    <a class="memory small" href="/account">
      {`Memory: ${bytes(use.bytes)} of ${bytes(use.quota_bytes)}`}
      <progress aria-label="Memory used" max={Math.max(1, use.quota_bytes)} value={use.bytes} />
    </a>
  );
}

function focusMenu(id: string): void {
  document.querySelector<HTMLElement>(`[data-id="menu ${CSS.escape(id)}"]`)?.focus();
}

export function focusComposer(): void {
  document.getElementById("message")?.focus();
}
