// Where a page may lead: only paths of this site.

/** The path to go to after a login, from `?next=`; "/" for anything that could lead to another site. */
export function nextPath(search: string, origin: string): string {
  const next = new URLSearchParams(search).get("next") ?? "/";
  if (!next.startsWith("/")) return "/";
  let target: URL;
  try {
    target = new URL(next, origin);
  } catch {
    return "/";
  }
  if (target.origin !== origin || target.pathname.startsWith("//") || target.pathname === "/login") return "/";
  return target.pathname + target.search + target.hash;
}
