// A box with code. It is highlighted when it is whole; what does that is fetched with the first code.
import { memo } from "preact/compat";
import { useLayoutEffect, useRef } from "preact/hooks";

import { CopyButton } from "./copy";

/** `isOpen`: the code still grows. */
export const Code = memo(function Code({ code, language, isOpen }: { code: string; language: string; isOpen: boolean }) {
  const place = useRef<HTMLElement>(null);
  useLayoutEffect(() => {
    const target = place.current;
    if (target === null) return;
    let isLate = false;
    const { firstChild, childNodes } = target;
    // A selection in code that grows stays.
    if (childNodes.length === 1 && firstChild instanceof Text && code.startsWith(firstChild.data)) firstChild.appendData(code.slice(firstChild.length));
    else target.textContent = code;
    if (!isOpen && language) void import("./highlight").then(({ highlight }) => isLate || highlight(target, code, language));
    return () => void (isLate = true);
  }, [code, language, isOpen]);
  return (
    <figure class="code" dir="ltr">
      <figcaption>
        <span>{language || "text"}</span>
        <CopyButton text={() => code} label="Copy" />
      </figcaption>
      <pre tabIndex={0}><code ref={place} /></pre>
    </figure>
  );
});
