// How much of the context the chat takes, and what the next question leaves of it.
import type { Chat } from "./chat";
import { type Turn, path } from "./tree";

/** A guess where no answer of the chat says how many characters its tokens have. */
export const USUAL_CHARS = 4;
/** A question between others counts for more than its text. */
export const AROUND_TOKENS = 8;

export function Meter({ chat }: { chat: Chat }) {
  const { tree, models, model, draft, files } = chat.state;
  const turns = path(tree);
  const last = turns.filter((one) => one.usage).at(-1);
  const size = last?.context?.limitTokens ?? models.find((one) => one.id === model)?.max_context_tokens;
  if (!last?.usage || !size) return <span />;
  const used = last.usage.promptTokens + last.usage.answerTokens;
  const left = leaves(turns, last, size, draft) - files.reduce((sum, one) => sum + (one.tokens ?? 0), 0);
  const remembered = last.usage.rememberedTokens ? `, ${short(last.usage.rememberedTokens)} remembered` : "";
  const next = left > 0 ? `, ${short(left)} left` : ". The next question leaves out the oldest turns";
  return (
    <span class="meter" title={`${used.toLocaleString("en")} of ${size.toLocaleString("en")} tokens`}>
      <progress aria-label="Context used" max={size} value={Math.min(used, size)} />
      <span>{`${short(used)}/${short(size)}`}{remembered && <span class="remembered">{remembered}</span>}{next}</span>
    </span>
  );
}

const charsOf = ({ text, files = [] }: Turn): number => files.reduce((sum, one) => sum + one.text.length, text.length);

/** The tokens that a question leaves of the context; negative: the oldest turns are left out for it. */
export function leaves(turns: Turn[], last: Turn, size: number, question: string): number {
  const { promptTokens, answerTokens } = last.usage!;
  const isSeen = !last.context?.leftOut;
  const chars = turns.slice(0, turns.indexOf(last) + 1).reduce((sum, one) => sum + charsOf(one), 0);
  const each = isSeen && chars ? Math.max(1, chars / (promptTokens + answerTokens)) : USUAL_CHARS;
  const tokens = question.trim() ? Math.ceil(question.length / each) + AROUND_TOKENS : 0;
  return size - promptTokens - answerTokens - tokens;
}

/** "312", "1.2k", "128k": thousands of 1,024, as contexts are named. */
export function short(tokens: number): string {
  if (tokens < 1000) return String(tokens);
  const thousands = tokens / 1024;
  return `${thousands < 10 ? Number(thousands.toFixed(1)) : Math.round(thousands)}k`;
}
