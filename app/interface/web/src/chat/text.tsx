// Renders Markdown. While a text grows only its last block is rendered again.
import { memo } from "preact/compat";
import { useId, useRef } from "preact/hooks";

import { Code } from "./code";
import { type Block, GrowingBlocks, blocks, fragment } from "./markdown";
import { nodesOf } from "./nodes";
import type { Source } from "./tree";

interface Props {
  text: string;
  isGrowing: boolean;
  /** What `[1]`, `[2]` in the text cite; absent: nothing. */
  sources?: Source[] | undefined;
  view?: (source: Source) => void;
}

export function Markdown({ text, isGrowing, sources, view }: Props) {
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
          <Html key={place} id={block.key} block={block} prefix={prefix} isOpen={isOpen} sources={sources} view={view} />
        );
      })}
    </>
  );
}

interface HtmlProps {
  sources: Props["sources"];
  view: Props["view"];
  id: string;
  block: Block & { kind: "html" };
  prefix: string;
  isOpen: boolean;
}

const Html = memo(
  function Html({ block, prefix, isOpen, sources, view }: HtmlProps) {
    return <div class="block">{nodesOf(fragment(block), prefix, isOpen, view && sources ? { sources, view } : undefined)}</div>;
  },
  (one, other) => one.id === other.id && one.isOpen === other.isOpen && one.sources === other.sources,
);
