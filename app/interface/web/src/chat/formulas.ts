// Renders LaTeX with KaTeX, which is loaded with its fonts when first needed.
import katex from "katex";
import "katex/dist/katex.css";

const MOST_CHARACTERS = 5000;

/** Replaces LaTeX in these elements by formulas. Invalid LaTeX stays as written. */
export function draw(elements: Iterable<HTMLElement>): void {
  for (const element of elements) {
    const tex = element.textContent ?? "";
    if (tex.length > MOST_CHARACTERS) continue;
    try {
      katex.render(tex, element, { displayMode: element.tagName === "DIV", throwOnError: true, trust: false, maxExpand: 200 });
    } catch {
      element.textContent = tex;
      element.classList.add("wrong");
    }
  }
}
