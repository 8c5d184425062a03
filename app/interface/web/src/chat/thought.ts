// What a model thinks before it answers: the text between <think> and </think>. Knows no page.

export interface Parts {
  thought: string;
  answer: string;
  isThinking: boolean;
}

const OPEN = "<think>";
const CLOSE = "</think>";

/** Thought and answer of a text that may still grow. Some templates open the thought themselves: only its end comes. */
export function parts(text: string): Parts {
  const start = text.trimStart();
  const end = text.indexOf(CLOSE);
  if (!start.startsWith(OPEN)) {
    if (end < 0) return { thought: "", answer: start !== "" && OPEN.startsWith(start) ? "" : text, isThinking: false };
    return { thought: text.slice(0, end).trim(), answer: text.slice(end + CLOSE.length).trimStart(), isThinking: false };
  }
  if (end < 0) return { thought: start.slice(OPEN.length).trimStart(), answer: "", isThinking: true };
  const thought = text.slice(text.indexOf(OPEN) + OPEN.length, end).trim();
  return { thought, answer: text.slice(end + CLOSE.length).trimStart(), isThinking: false };
}

/** The answer alone. */
export function spoken(text: string): string {
  return parts(text).answer.trim();
}
