// A model's Markdown as blocks, and a block as safe HTML. Of HTML in the model's output a few tags count, without their
// attributes; all else stays text. Images become links: nothing is loaded from other hosts. Knows no components.
import DOMPurify from "dompurify";
import { Marked, type Token, type Tokens } from "marked";
import markedFootnote, { type Footnotes } from "marked-footnote";

/** `key`: the same for blocks that look the same. */
export type Block = { key: string } & ({ kind: "code"; code: string; language: string } | { kind: "html"; tokens: Token[] });

/** The tags that a model may write as HTML. */
const HTML_TAGS = new Set("b br del details i ins kbd mark s small sub summary sup u".split(" "));
const TAG = /<(\/?)([a-z][a-z0-9]*)(?:[\s/][^<>]*)?>/gi;

const escaped = (text: string) =>
  text.replace(/[&<>"']/g, (one) => ({ "&": "&amp;", "<": "&lt;", ">": "&gt;", '"': "&quot;", "'": "&#39;" })[one] ?? one);
/** Leaves entities as they are. */
const escapedText = (text: string) => escaped(text).replace(/&amp;(?=(?:[a-z][a-z0-9]*|#\d+|#x[0-9a-f]+);)/gi, "&");

/** A model's HTML with the allowed tags alone, and the others as text. */
function plainHtml(html: string): string {
  let safe = "";
  let end = 0;
  for (const found of html.matchAll(TAG)) {
    const name = found[2]!.toLowerCase();
    if (!HTML_TAGS.has(name)) continue;
    safe += `${escapedText(html.slice(end, found.index))}<${found[1]}${name}>`;
    end = found.index + found[0].length;
  }
  return safe + escapedText(html.slice(end));
}

const formula = (tex: string, isBlock: boolean) =>
  isBlock ? `<div class="formula">${escaped(tex)}</div>` : `<span class="formula">${escaped(tex)}</span>`;

const footnotes = markedFootnote({ keepLabels: true });

const marked = new Marked(footnotes, {
  gfm: true,
  breaks: true,
  extensions: [
    {
      name: "formulas",
      level: "block",
      start: (text) => text.match(/(?<=^|\n) {0,3}(?:\$\$|\\\[)/)?.index,
      tokenizer(text) {
        const found = /^ {0,3}(?:\$\$([\s\S]+?)\$\$|\\\[([\s\S]+?)\\\])[^\S\n]*(?:\n|$)/.exec(text);
        return found ? { type: "formulas", raw: found[0], tex: (found[1] ?? found[2] ?? "").trim() } : undefined;
      },
      renderer: (token) => formula(String(token.tex), true),
    },
    {
      name: "formula",
      level: "inline",
      start: (text) => text.match(/\$|\\\(|\\\[/)?.index,
      tokenizer(text) {
        const found =
          /^(?:\$\$([^$]+?)\$\$|\\\(([\s\S]+?)\\\)|\\\[([\s\S]+?)\\\])/.exec(text) ??
          // A dollar sign for money has a space before the next one, or a digit after it.
          /^\$(?!\s)((?:\\.|[^$\\\n])+?)(?<!\s)\$(?!\d)/.exec(text);
        if (!found) return undefined;
        return { type: "formula", raw: found[0], tex: (found[1] ?? found[2] ?? found[3] ?? "").trim() };
      },
      renderer: (token) => formula(String(token.tex), false),
    },
    // The ids that footnotes need are given by those who show them: here they would be the model's.
    { name: "footnoteRef", renderer: ({ label, index }) => `<span class="ref${index ? " again" : ""}">${escaped(label)}</span>` },
    {
      name: "footnotes",
      renderer({ items }) {
        const notes = (items as Footnotes["items"]).map(
          ({ label, content }) => `<li class="note"><span class="label">${escaped(label)}</span>${this.parser.parse(content)}</li>`,
        );
        return `<ul class="notes">${notes.join("")}</ul>`;
      },
    },
  ],
  renderer: {
    html: ({ text }: Tokens.HTML | Tokens.Tag) => plainHtml(text),
    text(token: Tokens.Text | Tokens.Escape) {
      return "tokens" in token && token.tokens ? this.parser.parseInline(token.tokens) : escapedText(token.text);
    },
    image: ({ href, text }: Tokens.Image) => `<a href="${escaped(href)}">${escaped(text || href)}</a>`,
  },
});

const ALLOWED = {
  ALLOWED_TAGS: [
    ...HTML_TAGS,
    ...(
      "p strong em code pre blockquote ul ol li a h1 h2 h3 h4 h5 h6 hr table thead tbody tr th td input div span"
    ).split(" "),
  ],
  ALLOWED_ATTR: ["href", "class", "align", "start", "type", "checked", "disabled", "title"],
  ADD_URI_SAFE_ATTR: ["align", "start", "type"], // the others' values are held to be addresses
  ALLOWED_URI_REGEXP: /^(?:https?:|mailto:)/i,
  ALLOW_DATA_ATTR: false,
  ALLOW_ARIA_ATTR: false,
};

/** Returns the top-level blocks of a text. */
export function blocks(text: string): Block[] {
  return pieces(text).flatMap(({ block }) => block ?? []);
}

/** How many blocks at the end of a growing text may still change. */
const OPEN_BLOCKS = 2;

/** The blocks of a growing text. Blocks that can't change are not parsed again. */
export class GrowingBlocks {
  private settled: Block[] = [];
  private beginning = "";

  of(text: string): Block[] {
    // Of "\r" the lexer's lengths know nothing, and a footnote changes blocks far above it.
    if (/\r|\[\^/.test(text)) return blocks(text);
    if (!text.startsWith(this.beginning)) [this.settled, this.beginning] = [[], ""];
    const found = pieces(text.slice(this.beginning.length));
    const places = found.flatMap(({ block }, place) => (block === null ? [] : [place]));
    const open = places.at(-OPEN_BLOCKS);
    const all = [...this.settled, ...found.flatMap(({ block }) => block ?? [])];
    if (open !== undefined && places.length > OPEN_BLOCKS) {
      this.settled = all.slice(0, -OPEN_BLOCKS);
      this.beginning += found.slice(0, open).map(({ raw }) => raw).join("");
    }
    return all;
  }
}

/** A part of the text and its block; null: it shows nothing. */
interface Piece {
  raw: string;
  block: Block | null;
}

function pieces(text: string): Piece[] {
  const all: Token[] = marked.lexer(text);
  if (all[0]) footnotes.walkTokens?.(all[0]); // which moves the footnotes to the end, where there are any
  const tokens = all.filter((token) => token.type !== "footnotes" || (token as Footnotes).items.length);
  const notes = tokens.at(-1)?.type === "footnotes" ? (tokens.at(-1) as Footnotes).items.map(({ label }) => label).join(" ") : "";
  const found: Piece[] = [];
  for (let place = 0; place < tokens.length; place += 1) {
    const start = place;
    // What stands between <details> and </details> belongs to one element.
    for (let depth = opened(tokens[place]!); depth > 0 && place < tokens.length - 1; depth += opened(tokens[place]!)) place += 1;
    found.push(pieceOf(tokens.slice(start, place + 1), notes));
  }
  return found;
}

/** How many <details> a token opens, less those that it closes. */
function opened(token: Token): number {
  if (token.type !== "html") return 0;
  return (token.raw.match(/<details[\s>]/gi)?.length ?? 0) - (token.raw.match(/<\/details\s*>/gi)?.length ?? 0);
}

function pieceOf(tokens: Token[], notes: string): Piece {
  const raw = tokens.map((token) => token.raw).join("");
  const [token] = tokens as [Token];
  if (token.type === "space" || token.type === "footnote") return { raw, block: null };
  if (token.type !== "code") return { raw, block: { kind: "html", key: raw.includes("[^") ? `${raw} ${notes}` : raw, tokens } };
  const { lang, text } = token as Tokens.Code;
  return { raw, block: { kind: "code", key: raw, code: text, language: languageOf(lang ?? "") } };
}

/** The language in a code block's first line. */
function languageOf(info: string): string {
  return info.trim().split(/\s+/)[0]?.toLowerCase() ?? "";
}

/** Returns a block as elements. Their classes are the parser's: HTML in the model's output has no attributes. */
export function fragment(block: Block & { kind: "html" }): DocumentFragment {
  return DOMPurify.sanitize(marked.parser(block.tokens), { ...ALLOWED, RETURN_DOM_FRAGMENT: true });
}
