// Sanitized HTML as Preact's nodes: a block that grows keeps what the reader did in it, text selected or a <details> opened.
// Code gets its box, formulas are drawn, footnotes are linked. Knows no Markdown.
import { type ComponentChild, h } from "preact";
import { useLayoutEffect, useRef } from "preact/hooks";

import { Code } from "./code";
import { placeOf } from "./files";
import type { Source } from "./tree";

/** What `[1]`, `[2, 3]` in the text cite, and what a click on one does. */
export interface Cited {
  sources: Source[];
  view: (source: Source) => void;
}

interface Place {
  /** Begins the ids of the text's footnotes; those of no other text on the page begin so. */
  prefix: string;
  /** The code that may still grow. */
  open: Element | null;
  cited: Cited | undefined;
}

/** `isOpen`: the content may still grow at its end. */
export function nodesOf(content: DocumentFragment, prefix: string, isOpen: boolean, cited?: Cited): ComponentChild[] {
  const codes = isOpen ? [...content.querySelectorAll("pre")] : [];
  const place = { prefix, open: codes.at(-1) ?? null, cited };
  return [...content.childNodes].map((node) => nodeOf(node, place, { dir: "auto" }));
}

/** Elements whose text is only the space between their children. */
const OF_ELEMENTS = new Set(["UL", "OL", "TABLE", "THEAD", "TBODY", "TR"]);

function childrenOf(element: Element, place: Place): ComponentChild[] {
  const hasText = !OF_ELEMENTS.has(element.tagName);
  return [...element.childNodes].flatMap((node) => (hasText || node instanceof Element ? [nodeOf(node, place)] : []));
}

function nodeOf(node: Node, place: Place, more: Record<string, string> = {}): ComponentChild {
  if (!(node instanceof Element)) return citing(node.textContent ?? "", place.cited);
  const name = node.tagName.toLowerCase();
  const given = { ...Object.fromEntries([...node.attributes].map(({ name, value }) => [name, value])), ...more };
  const children = () => childrenOf(node, place);
  if (name === "pre") {
    const language = /^language-(\S+)/.exec(node.firstElementChild?.className ?? "")?.[1]?.toLowerCase() ?? "";
    return <Code code={(node.textContent ?? "").replace(/\n$/, "")} language={language} isOpen={node === place.open} />;
  }
  if (node.classList.contains("formula")) return <Formula tex={node.textContent ?? ""} isBlock={name === "div"} />;
  if (node.classList.contains("ref")) return <Reference label={node.textContent ?? ""} isFirst={!node.classList.contains("again")} place={place} />;
  if (node.classList.contains("note")) return <Note node={node} place={place} />;
  if (name === "code") return h("code", given, node.textContent); // an index such as a[1] cites nothing
  if (name === "a") return h("a", { ...given, target: "_blank", rel: "noopener noreferrer" }, children());
  if (name === "input") return given.type === "checkbox" ? <input type="checkbox" checked={"checked" in given} disabled aria-label="Task" /> : null;
  if (name === "table") return <div class="table" tabIndex={0} role="group" aria-label="Table" {...more}>{h("table", given, children())}</div>;
  return h(name, given, children());
}

/** `[1]`, `[1, 3]`, `[1-3]`, and the brackets of Chinese and Japanese. The service's annotations count the same. */
const CITED = /([[【［]\s*\d{1,3}(?:\s*[,;，、–—-]\s*\d{1,3}){0,31}\s*[\]】］])/;

/** The numbers that a citation has, of `count` sources. */
function numbersIn(cited: string, count: number): number[] {
  return [...cited.matchAll(/(\d+)(?:\s*[–—-]\s*(\d+))?/g)].flatMap(([, first, last]) => {
    const [from, to] = [Number(first), Number(last ?? first)];
    return from >= 1 && to <= count ? Array.from({ length: Math.max(0, to - from + 1) }, (_, more) => from + more) : [];
  });
}

/** A text whose citations open what they cite: a list of several is one button for each. */
function citing(text: string, cited: Cited | undefined): ComponentChild {
  if (!cited?.sources.length || !/[[【［]/.test(text)) return text;
  return text.split(CITED).map((part, at) => {
    const numbers = at % 2 ? numbersIn(part, cited.sources.length) : [];
    return numbers.length ? numbers.map((number) => <Citation number={number} cited={cited} />) : part;
  });
}

function Citation({ number, cited }: { number: number; cited: Cited }) {
  const source = cited.sources[number - 1];
  if (source === undefined) return null;
  const place = placeOf(source);
  return <button type="button" class="cite" title={place} aria-label={`Source ${number}: ${place}`} onClick={() => cited.view(source)}>{`[${number}]`}</button>;
}

/** LaTeX, which becomes a formula when KaTeX is there. */
function Formula({ tex, isBlock }: { tex: string; isBlock: boolean }) {
  const place = useRef<HTMLElement>(null);
  useLayoutEffect(() => {
    const { current } = place;
    if (current === null) return;
    let isLate = false;
    current.textContent = tex;
    current.classList.remove("wrong");
    void import("./formulas").then(({ draw }) => isLate || draw(current, tex, isBlock));
    return () => void (isLate = true);
  }, [tex, isBlock]);
  return h(isBlock ? "div" : "span", { ref: place, class: "formula" });
}

const idOf = ({ prefix }: Place, label: string) => `${prefix}note-${encodeURIComponent(label)}`;

/** Goes to an element of the page without a change of its address, which would be another chat's. */
function go(event: MouseEvent, id: string): void {
  event.preventDefault();
  const target = document.getElementById(id);
  target?.scrollIntoView({ block: "nearest" });
  target?.focus({ preventScroll: true });
}

function Reference({ label, isFirst, place }: { label: string; isFirst: boolean; place: Place }) {
  const id = idOf(place, label);
  return (
    <sup>
      <a {...(isFirst && { id: `${id}-ref` })} href={`#${id}`} role="doc-noteref" aria-label={`Footnote ${label}`} onClick={(event) => go(event, id)}>
        {label}
      </a>
    </sup>
  );
}

function Note({ node, place }: { node: Element; place: Place }) {
  const [label, ...content] = [...node.childNodes];
  const id = idOf(place, label?.textContent ?? "");
  return (
    <li id={id} tabIndex={-1} class="note">
      <span class="label">{label?.textContent}</span>
      <div>{content.map((each) => nodeOf(each, place))}</div>
      <a href={`#${id}-ref`} role="doc-backlink" aria-label="Back to the text" onClick={(event) => go(event, `${id}-ref`)}>↩</a>
    </li>
  );
}
