// The whole user interface: sidebar, header, thread, composer.
import { useEffect, useLayoutEffect, useMemo, useReducer, useState } from "preact/hooks";

import { Aloud } from "./aloud";
import { Composer } from "./composer";
import type { Chat } from "./chat";
import { Drop } from "./drop";
import { FileView } from "./file_view";
import { Icon } from "./icons";
import * as service from "./service";
import { Settings } from "./settings";
import { Sidebar, focusComposer } from "./sidebar";
import { Thread } from "./thread";
import { applyTheme, nextTheme } from "./theme";

export function App({ chat }: { chat: Chat }) {
  const [, redraw] = useReducer((count: number) => count + 1, 0);
  const [isOpen, setOpen] = useState(false);
  const [isSetting, setSetting] = useState(false);
  const [theme, setTheme] = useState(applyTheme());
  const isDrawer = useMedia(NARROW);
  const [Lock, setLock] = useState<typeof import("./verdict").Lock | null>(null);
  useEffect(() => {
    if (isProxied()) void import("./verdict").then((loaded) => setLock(() => loaded.Lock));
  }, []);
  const { state } = chat;
  // With the first rendering, not after it is painted: the service may have answered by then.
  useLayoutEffect(() => chat.subscribe(() => redraw(undefined)), [chat]);
  useEffect(() => {
    const onKey = (event: KeyboardEvent) => {
      if (event.key === "Escape" && !document.querySelector("dialog[open]")) {
        if (isOpen && isDrawer) {
          setOpen(false);
          requestAnimationFrame(() => document.querySelector<HTMLElement>("header .drawer")?.focus());
        } else if (chat.state.writing) chat.stop();
      } else if ((event.ctrlKey || event.metaKey) && event.key.toLowerCase() === "k") {
        event.preventDefault();
        setOpen(true);
        focusSearch(); // at once, so that what is typed next goes there
        requestAnimationFrame(focusSearch); // in a drawer that has just opened
      }
    };
    addEventListener("keydown", onKey);
    return () => removeEventListener("keydown", onKey);
  }, [chat, isOpen, isDrawer]);

  const { title } = chat;
  useEffect(() => void (document.title = title ? `${title} - Redoubt` : "Redoubt"), [title]);
  useEffect(() => {
    // A drawer that has just opened; `focusSearch` has been before.
    if (isOpen && isDrawer) requestAnimationFrame(() => document.activeElement?.closest(".sidebar") || document.querySelector<HTMLElement>(".sidebar .new")?.focus());
  }, [isOpen, isDrawer]);

  const { entries, hasMore, words, user, leaving, isTemporary, id } = state;
  // Not rendered again with each chunk of an answer.
  const sidebar = useMemo(
    () => <Sidebar chat={chat} close={() => setOpen(false)} openSettings={() => setSetting(true)} />,
    [chat, entries, hasMore, words, user, leaving, isTemporary, id],
  );
  const turns = Object.keys(state.tree.turns).length;
  return (
    <div class={isOpen ? "app open" : "app"}>
      <a class="skip" href="#message" onClick={(event) => (event.preventDefault(), focusComposer())}>Skip to the message</a>
      {sidebar}
      <button class="veil" tabIndex={-1} aria-label="Close the sidebar" onClick={() => setOpen(false)} />
      <main inert={isOpen && isDrawer}>
        <header>
          <button class="bare drawer" aria-label="Conversations" aria-expanded={isOpen} onClick={() => setOpen(!isOpen)}>
            <Icon name="menu" />
          </button>
          <Models chat={chat} />
          <button class="bare" aria-label={`Colours: ${theme}`} title={`Colours: ${theme}`} onClick={() => setTheme(nextTheme(theme))}>
            <Icon name="theme" />
          </button>
          <button class="bare drawer" aria-label="New chat" disabled={turns === 0} onClick={() => chat.newChat()}>
            <Icon name="plus" />
          </button>
        </header>
        {Lock && <Lock chat={chat} />}
        <div role="status">
          {!state.isReachable && <p class="strip">Reconnecting to the service… Your chat is kept.</p>}
          {state.notice && (
            <div class="strip notice">
              {state.notice}
              <button class="bare" aria-label="Dismiss" onClick={() => chat.set({ notice: "" })}><Icon name="close" /></button>
            </div>
          )}
        </div>
        {state.needsKey && <KeyForm chat={chat} />}
        <Thread chat={chat} />
        <Composer chat={chat} />
        <Aloud chat={chat} />
        <Drop chat={chat} />
      </main>
      {state.viewed && <FileView file={state.viewed} close={() => chat.set({ viewed: null })} />}
      {isSetting && <Settings chat={chat} close={() => setSetting(false)} />}
    </div>
  );
}

/**
 * Whether the local proxy serves this page. The service's own copy has no such mark, so it asks for no verdict and shows no
 * lock; nor does a copy at another address than this machine's own.
 */
const isProxied = () =>
  document.querySelector('meta[name="redoubt-proxy"]') !== null && ["127.0.0.1", "[::1]", "localhost"].includes(location.hostname);

/** Where the sidebar is a drawer. */
const NARROW = "(max-width: 800px)";

function useMedia(query: string): boolean {
  const [holds, setHolds] = useState(() => matchMedia(query).matches);
  useEffect(() => {
    const media = matchMedia(query);
    const look = () => setHolds(media.matches);
    media.addEventListener("change", look);
    return () => media.removeEventListener("change", look);
  }, [query]);
  return holds;
}

function focusSearch() {
  document.getElementById("search")?.focus();
}

/** The model's name; it stays when the service does not answer. */
function Models({ chat }: { chat: Chat }) {
  const { model, isReachable } = chat.state;
  const models = chat.state.models.filter(service.canChat);
  const size = (tokens: number) => `${Math.round(tokens / 1024)}k`;
  const shown = chat.state.models.find((one) => one.id === model);
  return (
    <div class="model">
      {models.length > 1 ? (
        <select aria-label="Model" value={model} onChange={(event) => chat.choose(event.currentTarget.value)}>
          {models.map((one) => (
            <option key={one.id} value={one.id}>{`${one.id} (${size(one.max_context_tokens)})`}</option>
          ))}
        </select>
      ) : (
        <span class="name" title={shown ? `Context: ${shown.max_context_tokens.toLocaleString("en")} tokens` : ""}>
          {model || "Redoubt"}
          {shown && <span class="quiet"> {size(shown.max_context_tokens)}</span>}
        </span>
      )}
      <span class={isReachable && shown ? "dot ready" : "dot"} aria-hidden="true" />
      <span class="quiet small">
        {!isReachable ? "reconnecting" : shown && stateOf(shown)}
      </span>
    </div>
  );
}

function stateOf(model: service.Model): string {
  if (!service.canChat(model)) return "no chat template: can't chat";
  return model.asleep ? "asleep, wakes with your question" : "ready";
}

function KeyForm({ chat }: { chat: Chat }) {
  return (
    <form
      class="strip key"
      onSubmit={(event) => {
        event.preventDefault();
        void chat.useKey(String(new FormData(event.currentTarget as HTMLFormElement).get("key")).trim());
      }}
    >
      <label for="key">This service asks for an API key. It stays in this tab.</label>
      <div class="row">
        <input id="key" name="key" type="password" autocomplete="off" required defaultValue={chat.state.key} />
        <button class="main">Use it</button>
      </div>
    </form>
  );
}
