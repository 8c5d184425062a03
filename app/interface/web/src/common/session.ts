// The session that this page assumes to have. Every request states it, since the cookie may have become another user's in
// another tab; tabs notify each other of logins and logouts, and a page checks when it becomes visible. Knows no page.

const CHANNEL = "redoubt.session";
/** The key in the tab's storage for the user whose data it holds. */
const OWNER = "redoubt.owner";
const ENDED = ["session_expired", "another_user", "password_change_required"];

let user = "";

/** The value of a page that knows that nobody is logged in: then no cookie counts. */
export const NOBODY = "none";

/** Makes all further requests this user's, or `NOBODY`'s; "": whoever the cookie belongs to. */
export function believe(id: string): void {
  user = id;
}

/** The header by which the service refuses requests that would affect another user's account. */
export const asUser = (): Record<string, string> => (user ? { "X-Redoubt-User": user } : {});
const isUser = () => user !== "" && user !== NOBODY;

/** Notifies all tabs whose session the browser has now; "": nobody's. */
export function announce(id: string): void {
  const channel = new BroadcastChannel(CHANNEL);
  channel.postMessage(id);
  channel.close();
}

/** Whether a failure's code means that this page's session has ended. */
export const isOver = (code: string | null): boolean => isUser() && ENDED.includes(code ?? "");

/** Leads to the login, which brings the same user back to `next`. The page's content is discarded. */
export function leave(next: string): void {
  location.replace(`/login?ended=yes&next=${encodeURIComponent(next)}`);
}

/** Calls `over` when the browser's session is no longer this page's: by another tab's notice, or when it becomes visible. */
export function watch(over: () => void): void {
  new BroadcastChannel(CHANNEL).onmessage = ({ data }: MessageEvent<string>) => {
    if (isUser() && data !== user) over();
  };
  const look = async () => {
    if (!isUser() || document.hidden) return;
    const answer = await fetch("/v1/auth/session", { headers: asUser(), cache: "no-store" }).catch(() => null);
    if (answer?.status === 401 || answer?.status === 409) over();
  };
  document.addEventListener("visibilitychange", () => void look());
  addEventListener("pageshow", (event) => event.persisted && void look());
}

/** Makes the tab's storage this user's. Another user's data is deleted; a guest's stays. */
export function own(storage: Storage): void {
  const owner = storage.getItem(OWNER) ?? "";
  if (owner && owner !== user) storage.clear();
  if (isUser()) storage.setItem(OWNER, user);
}

/** Whether the tab's storage has no data of a user who is not known to be here yet. */
export const isNobodys = (storage: Storage): boolean => !storage.getItem(OWNER);
