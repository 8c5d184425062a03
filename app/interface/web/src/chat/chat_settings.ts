// The settings that belong to a chat: its model, its system prompt, and how it is answered. The service keeps a user's in the
// conversation's metadata, which is sealed like its texts. Knows no page and no service.
import type { Knobs, Think } from "./service";

export interface Settings {
  /** Empty: the model chosen last. */
  model: string;
  knobs: Knobs;
}

export const PLAIN: Knobs = { system: "", temperature: null, topP: null, maxTokens: null, seed: null, think: null, collection: "" };

/** The service's limits of metadata: characters of a value, and values besides title, pin, model and thinking. */
const VALUE_CHARS = 512;
const MOST_PARTS = 12;
const PART = "settings";
const THINKING: readonly string[] = ["off", "short", "full"];

const nameOf = (place: number) => (place ? `${PART}_${place + 1}` : PART);

/** Returns settings as metadata; null: they are too long. */
export function asMetadata({ model, knobs: { think, ...others } }: Settings): Record<string, string> | null {
  const set = Object.fromEntries(Object.entries(others).filter(([, value]) => value !== null && value !== ""));
  const chars = Object.keys(set).length ? [...JSON.stringify(set)] : [];
  const parts: [string, string][] = [];
  for (let at = 0; at < chars.length; at += VALUE_CHARS) parts.push([nameOf(parts.length), chars.slice(at, at + VALUE_CHARS).join("")]);
  if (parts.length > MOST_PARTS) return null;
  return { ...Object.fromEntries(parts), ...(think && { thinking: think }), ...(model && model.length <= VALUE_CHARS && { model }) };
}

/** The settings in a conversation's metadata. */
export function ofMetadata(metadata: Record<string, string>): Settings {
  let text = "";
  for (let place = 0; metadata[nameOf(place)] !== undefined; place += 1) text += metadata[nameOf(place)];
  const think = THINKING.includes(metadata.thinking ?? "") ? (metadata.thinking as Think) : null;
  return { model: metadata.model ?? "", knobs: { ...knobsOf(text), think } };
}

/** Metadata without the settings in it. */
export function withoutSettings(metadata: Record<string, string>): Record<string, string> {
  const isSetting = (name: string) => name === "model" || name === "thinking" || name === PART || name.startsWith(`${PART}_`);
  return Object.fromEntries(Object.entries(metadata).filter(([name]) => !isSetting(name)));
}

/** Reads kept values, each as far as it is one. */
export function knobsOf(text: string | null): Knobs {
  let kept: Record<string, unknown>;
  try {
    kept = (JSON.parse(text || "{}") as Record<string, unknown> | null) ?? {};
  } catch {
    return PLAIN;
  }
  const number = (value: unknown) => (typeof value === "number" && Number.isFinite(value) ? value : null);
  const think = THINKING.includes(String(kept.think)) ? (kept.think as Think) : null;
  return {
    system: typeof kept.system === "string" ? kept.system : "", temperature: number(kept.temperature), topP: number(kept.topP),
    maxTokens: number(kept.maxTokens), seed: number(kept.seed), think, collection: typeof kept.collection === "string" ? kept.collection : "",
  };
}
