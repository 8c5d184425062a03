// Whose session this page believes to have. Every request says so, since the cookie may have become another user's in
// another tab; tabs tell each other who logs in and out, and a page that is seen again asks. Knows no page.

const CHANNEL = "redoubt.session";
/** In the tab's own storage: whose what is kept there is. */
const OWNER = "redoubt.owner";
const ENDED = ["session_expired", "another_user", "password_change_required"];

let user = "";

/** What a page says that knows that nobody is logged in: no cookie counts then. */
export const NOBODY = "none";

/** From now on all requests are this user's, or `NOBODY`'s; "": as the cookie is. */
export function believe(id: string): void {
  user = id;
}

/** The header by which the service refuses what would go into another user's account. */
export const asUser = (): Record<string, string> => (user ? { "X-Redoubt-User": user } : {});
const isUser = () => user !== "" && user !== NOBODY;

/** Tells all tabs whose session the browser has now; "": nobody's. */
export function announce(id: string): void {
  const channel = new BroadcastChannel(CHANNEL);
  channel.postMessage(id);
  channel.close();
}

/** Whether a failure's code means that this page's session is over. */
export const isOver = (code: string | null): boolean => isUser() && ENDED.includes(code ?? "");

/** Leads to the login, which brings the same user back to `next`. What the page shows goes with it. */
export function leave(next: string): void {
  location.replace(`/login?ended=yes&next=${encodeURIComponent(next)}`);
}

/** Calls `over` when the browser's session is not this page's any more: told by another tab, or found out on being seen again. */
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

/** Makes the tab's storage this user's. What another one has left in it goes; what a guest has left stays. */
export function own(storage: Storage): void {
  const owner = storage.getItem(OWNER) ?? "";
  if (owner && owner !== user) storage.clear();
  if (isUser()) storage.setItem(OWNER, user);
}

/** Whether the tab's storage has nothing of a user's who is not known to be here yet. */
export const isNobodys = (storage: Storage): boolean => !storage.getItem(OWNER);
