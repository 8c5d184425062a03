// LaTeX, drawn by KaTeX, which comes with its fonts when it is first needed.
import katex from "katex";
import "katex/dist/katex.css";

const MOST_CHARACTERS = 5000;

/** Draws the formulas of these elements in place of their LaTeX. One that is wrong stays as it was written. */
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
