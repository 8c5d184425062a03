// Numbers as people read them.

/** "1.5 GB": powers of 1,000, at most one decimal. */
export function bytes(count: number): string {
  const units = ["B", "kB", "MB", "GB", "TB"];
  let value = count;
  let unit = 0;
  while (value >= 999.95 && unit < units.length - 1) {
    value /= 1000;
    unit += 1;
  }
  return `${unit === 0 || value >= 99.95 ? Math.round(value) : Number(value.toFixed(1))} ${units[unit]}`;
}

/** A count with its noun: "1 page", "2,000 pages". */
export function counted(count: number, noun: string): string {
  return `${count.toLocaleString("en")} ${noun}${count === 1 ? "" : "s"}`;
}

/** A moment of Unix seconds, in this browser's time: "25 Nov 2026, 14:03". */
export function moment(seconds: number): string {
  const time = new Date(seconds * 1000).toLocaleTimeString("en-GB", { hour: "2-digit", minute: "2-digit" });
  return `${day(seconds)}, ${time}`;
}

/** A day of Unix seconds: "25 Nov 2026". */
export function day(seconds: number): string {
  return new Date(seconds * 1000).toLocaleDateString("en-GB", { day: "numeric", month: "short", year: "numeric" });
}
