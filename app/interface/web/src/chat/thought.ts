// Thoughts in texts of other chat pages, and in those that were kept here when a thought was part of its answer: what stands
// between <think> and </think> at the beginning. Knows no page.

const OPEN = "<think>";
const CLOSE = "</think>";

/** Such a text as thought and answer; a turn of these values. */
export function apart(text: string): { text: string; thought?: string } {
  const start = text.trimStart();
  if (!start.startsWith(OPEN)) return { text };
  const [thought = "", ...rest] = start.slice(OPEN.length).split(CLOSE);
  return { text: rest.join(CLOSE).trimStart(), thought: thought.trim() };
}
