// Renders Markdown. While a text grows only its last block is rendered again.
import { memo } from "preact/compat";
import { useId, useRef } from "preact/hooks";

import { Code } from "./code";
import { type Block, GrowingBlocks, blocks, fragment } from "./markdown";
import { nodesOf } from "./nodes";

export function Markdown({ text, isGrowing }: { text: string; isGrowing: boolean }) {
  const growing = useRef<GrowingBlocks | null>(null);
  growing.current ??= new GrowingBlocks();
  const prefix = useId();
  const all = isGrowing ? growing.current.of(text) : blocks(text);
  return (
    <>
      {all.map((block, place) => {
        const isOpen = isGrowing && place === all.length - 1;
        return block.kind === "code" ? (
          <Code key={place} code={block.code} language={block.language} isOpen={isOpen} />
        ) : (
          <Html key={place} id={block.key} block={block} prefix={prefix} isOpen={isOpen} />
        );
      })}
    </>
  );
}

interface HtmlProps {
  id: string;
  block: Block & { kind: "html" };
  prefix: string;
  isOpen: boolean;
}

const Html = memo(
  function Html({ block, prefix, isOpen }: HtmlProps) {
    return <div class="block">{nodesOf(fragment(block), prefix, isOpen)}</div>;
  },
  (one, other) => one.id === other.id && one.isOpen === other.isOpen,
);
