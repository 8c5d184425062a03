// Renders Markdown. While a text grows only its last block is rendered again. Highlighting and formulas are fetched
// from the service when the first of them becomes visible.
import { memo } from "preact/compat";
import { useEffect, useLayoutEffect, useRef } from "preact/hooks";

import { CopyButton } from "./copy";
import { type Block, GrowingBlocks, blocks, fragment } from "./markdown";

export function Markdown({ text, isGrowing }: { text: string; isGrowing: boolean }) {
  const growing = useRef<GrowingBlocks | null>(null);
  growing.current ??= new GrowingBlocks();
  const all = isGrowing ? growing.current.of(text) : blocks(text);
  return (
    <>
      {all.map((block, place) => {
        const isOpen = isGrowing && place === all.length - 1;
        return block.kind === "code" ? (
          <Code key={place} raw={block.raw} code={block.code} language={block.language} isOpen={isOpen} />
        ) : (
          <Html key={place} raw={block.raw} block={block} isOpen={isOpen} />
        );
      })}
    </>
  );
}

const isSame = (one: { raw: string; isOpen: boolean }, other: { raw: string; isOpen: boolean }) =>
  one.raw === other.raw && one.isOpen === other.isOpen;

const Html = memo(function Html({ block, isOpen }: { raw: string; block: Block & { kind: "html" }; isOpen: boolean }) {
  const place = useRef<HTMLDivElement>(null);
  useLayoutEffect(() => {
    place.current?.replaceChildren(fragment(block));
    const formulas = place.current?.querySelectorAll<HTMLElement>(".formula") ?? [];
    if (formulas.length) void import("./formulas").then(({ draw }) => draw(formulas));
  }, [block, isOpen]);
  return <div ref={place} class="block" />;
}, isSame);

interface CodeProps {
  raw: string;
  code: string;
  language: string;
  isOpen: boolean;
}

const Code = memo(function Code({ code, language, isOpen }: CodeProps) {
  const place = useRef<HTMLElement>(null);
  useEffect(() => {
    const target = place.current;
    if (target === null) return;
    target.textContent = code;
    if (!isOpen && language) void import("./highlight").then(({ highlight }) => highlight(target, code, language));
  }, [code, language, isOpen]);
  return (
    <figure class="code">
      <figcaption>
        <span>{language || "text"}</span>
        <CopyButton text={() => code} label="Copy" />
      </figcaption>
      <pre tabIndex={0}><code ref={place} /></pre>
    </figure>
  );
}, isSame);
