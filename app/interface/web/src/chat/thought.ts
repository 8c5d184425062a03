// Thoughts in texts of other chat clients, and in old ones stored here when a thought was part of its answer: the text
// between <think> and </think> at the beginning. Knows no page.

const OPEN = "<think>";
const CLOSE = "</think>";

/** Splits such a text into thought and answer of a turn. */
export function apart(text: string): { text: string; thought?: string } {
  const start = text.trimStart();
  if (!start.startsWith(OPEN)) return { text };
  const [thought = "", ...rest] = start.slice(OPEN.length).split(CLOSE);
  return { text: rest.join(CLOSE).trimStart(), thought: thought.trim() };
}
