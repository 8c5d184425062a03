// The light or dark theme: the system's, or the user's choice on this machine.
export type Theme = "as the system" | "light" | "dark";

const ORDER: Theme[] = ["as the system", "light", "dark"];
const KEY = "redoubt.theme";

/** Applies the chosen theme to the page, and returns it. */
export function applyTheme(theme: Theme = (localStorage.getItem(KEY) as Theme | null) ?? "as the system"): Theme {
  const known = ORDER.includes(theme) ? theme : "as the system";
  if (known === "as the system") delete document.documentElement.dataset.theme;
  else document.documentElement.dataset.theme = known;
  return known;
}

export function nextTheme(theme: Theme): Theme {
  const next = ORDER[(ORDER.indexOf(theme) + 1) % ORDER.length]!;
  localStorage.setItem(KEY, next);
  return applyTheme(next);
}
