// Draws LaTeX with KaTeX, which is loaded with its fonts when first needed.
import katex from "katex";
import "katex/dist/katex.css";

const MOST_CHARACTERS = 5000;

/** Draws a formula into an element that shows its LaTeX. Invalid LaTeX stays as written. */
export function draw(element: HTMLElement, tex: string, isBlock: boolean): void {
  if (tex.length > MOST_CHARACTERS) return;
  try {
    katex.render(tex, element, { displayMode: isBlock, throwOnError: true, trust: false, maxExpand: 200 });
  } catch {
    element.textContent = tex;
    element.classList.add("wrong");
  }
}
