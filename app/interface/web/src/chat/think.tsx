// How much the model thinks before it answers, where that can be chosen. Kept with the chat.
import type { Chat } from "./chat";
import type { Think } from "./service";

const NAMES: Record<Think, string> = { off: "off", short: "short", full: "full" };

export function ThinkSwitch({ chat }: { chat: Chat }) {
  const { models, model, knobs } = chat.state;
  const thinking = models.find((one) => one.id === model)?.thinking;
  if (!thinking) return null;
  const offered: Think[] = thinking.switch ? ["off", "short", "full"] : ["short", "full"];
  const usual = offered.includes(thinking.default) ? thinking.default : "full";
  const shown = knobs.think !== null && offered.includes(knobs.think) ? knobs.think : usual;
  return (
    <label class="think" title={`How much the model thinks before it answers. Short: at most ${thinking.short_tokens.toLocaleString("en")} tokens.`}>
      Think:
      <select aria-label="Think" value={shown} onChange={(event) => chat.change({ think: event.currentTarget.value as Think })}>
        {offered.map((one) => <option key={one} value={one}>{NAMES[one]}</option>)}
      </select>
    </label>
  );
}
