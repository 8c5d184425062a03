// Light or dark: as the system has it, or as the person said on this machine.
export type Theme = "as the system" | "light" | "dark";

const ORDER: Theme[] = ["as the system", "light", "dark"];
const KEY = "redoubt.theme";

/** Puts the chosen one on the page, and says which it is. */
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
