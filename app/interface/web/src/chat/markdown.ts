// A model's Markdown as blocks, and a block as safe HTML. HTML in the model's output stays text.
// Images become links: nothing is loaded from other hosts. Highlighting and formulas are added later.
import DOMPurify from "dompurify";
import { Marked, type Token, type Tokens, type TokensList } from "marked";

export type Block = { kind: "code"; raw: string; code: string; language: string } | { kind: "html"; raw: string; token: Token };

const escaped = (text: string) =>
  text.replace(/[&<>"']/g, (one) => ({ "&": "&amp;", "<": "&lt;", ">": "&gt;", '"': "&quot;", "'": "&#39;" })[one] ?? one);

const formula = (tex: string, isBlock: boolean) =>
  isBlock ? `<div class="formula">${escaped(tex)}</div>` : `<span class="formula">${escaped(tex)}</span>`;

const marked = new Marked({
  gfm: true,
  breaks: false,
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
  ],
  renderer: {
    html: ({ text }: Tokens.HTML | Tokens.Tag) => (/^<br\s*\/?>$/i.test(text.trim()) ? "<br>" : escaped(text)),
    image: ({ href, text }: Tokens.Image) => `<a href="${escaped(href)}">${escaped(text || href)}</a>`,
  },
});

const ALLOWED = {
  ALLOWED_TAGS: (
    "p br strong em del code pre blockquote ul ol li a h1 h2 h3 h4 h5 h6 hr table thead tbody tr th td input div span"
  ).split(" "),
  ALLOWED_ATTR: ["href", "class", "align", "start", "type", "checked", "disabled", "title", "target", "rel"],
  ADD_URI_SAFE_ATTR: ["align", "start", "type"], // the others' values are held to be addresses
  ALLOWED_URI_REGEXP: /^(?:https?:|mailto:)/i,
  ALLOW_DATA_ATTR: false,
  ALLOW_ARIA_ATTR: false,
};

/** Returns the top-level blocks of a text. */
export function blocks(text: string): Block[] {
  return marked.lexer(text).flatMap((token) => blockOf(token) ?? []);
}

/** How many blocks at the end of a growing text may still change. */
const OPEN_BLOCKS = 2;

/** The blocks of a growing text. Blocks that can't change are not parsed again. */
export class GrowingBlocks {
  private settled: Block[] = [];
  private beginning = "";

  of(text: string): Block[] {
    if (text.includes("\r")) return blocks(text); // of which the lexer's lengths know nothing
    if (!text.startsWith(this.beginning)) [this.settled, this.beginning] = [[], ""];
    const tokens: TokensList = marked.lexer(text.slice(this.beginning.length));
    const found = tokens.map(blockOf);
    const places = found.flatMap((block, place) => (block === null ? [] : [place]));
    const open = places.at(-OPEN_BLOCKS);
    const all = [...this.settled, ...found.filter((block) => block !== null)];
    if (open !== undefined && places.length > OPEN_BLOCKS) {
      const certain = tokens.slice(0, open);
      this.settled = all.slice(0, -OPEN_BLOCKS);
      this.beginning += certain.map((token) => token.raw).join("");
    }
    return all;
  }
}

function blockOf(token: Token): Block | null {
  if (token.type === "space") return null;
  if (token.type !== "code") return { kind: "html", raw: token.raw, token };
  const { lang, text } = token as Tokens.Code;
  return { kind: "code", raw: token.raw, code: text, language: lang?.trim().split(/\s+/)[0]?.toLowerCase() ?? "" };
}

/** Returns a block as an element. */
export function fragment(block: Block & { kind: "html" }): DocumentFragment {
  const html = marked.parser([block.token]);
  const clean = DOMPurify.sanitize(html, { ...ALLOWED, RETURN_DOM_FRAGMENT: true });
  for (const link of clean.querySelectorAll("a[href]")) {
    link.setAttribute("target", "_blank");
    link.setAttribute("rel", "noopener noreferrer");
  }
  for (const box of clean.querySelectorAll("input")) {
    if (box.type !== "checkbox") box.remove();
    box.disabled = true;
    box.setAttribute("aria-label", "Task");
  }
  for (const table of clean.querySelectorAll("table")) {
    const frame = document.createElement("div");
    frame.className = "table";
    frame.tabIndex = 0;
    frame.setAttribute("role", "region");
    frame.setAttribute("aria-label", "Table");
    table.replaceWith(frame);
    frame.append(table);
  }
  return clean;
}
