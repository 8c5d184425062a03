// Keeps the keyboard's focus on the page: where the focused element goes away, what stands nearest to it gets the focus.
// Browsers give it to <body>, from where people with a keyboard or a screen reader begin anew. Knows no page.

const FOCUSABLE = "a[href], button, input, select, textarea, summary, [tabindex]";

const canFocus = (one: Element): one is HTMLElement =>
  one instanceof HTMLElement && one.isConnected && !one.matches(":disabled, [inert] *, [hidden] *") && one.tabIndex >= 0 &&
  (one.checkVisibility?.({ visibilityProperty: true }) ?? true);

/** The first element in a node, or the node itself, that can have the focus. */
function firstIn(node: Node | null): HTMLElement | null {
  if (!(node instanceof Element)) return null;
  if (node.matches(FOCUSABLE) && canFocus(node)) return node;
  return [...node.querySelectorAll(FOCUSABLE)].find(canFocus) ?? null;
}

/** `data-id` says that an element stands for the same as one that has gone, such as a row that moved. */
const sameAs = (root: Element, lost: HTMLElement): HTMLElement | null =>
  lost.dataset.id ? firstIn(root.querySelector(`[data-id="${CSS.escape(lost.dataset.id)}"]`)) : null;

/** `spare`: what gets the focus instead of the nearest element, by the ancestors of the lost one; null: the nearest. */
export function keepFocus(root: HTMLElement, spare: (around: Element[]) => HTMLElement | null): void {
  let held: HTMLElement | null = null;
  let around: Element[] = [];
  let isPointing = false;

  const isLost = () => {
    const now = document.activeElement;
    return held !== null && (now === null || now === document.body || (now === held && held.matches(":disabled")));
  };
  const nearest = (lost: HTMLElement, records: MutationRecord[]): HTMLElement | null => {
    const moved = sameAs(root, lost) ?? spare(around);
    if (moved !== null) return moved;
    const removal = records.find((record) => [...record.removedNodes].some((node) => node.contains(lost)));
    if (removal) {
      const inPlace = records.filter(({ target }) => target === removal.target).flatMap(({ addedNodes }) => [...addedNodes]);
      for (const node of [...inPlace, removal.nextSibling, removal.previousSibling]) {
        const found = firstIn(node);
        if (found) return found;
      }
    }
    for (const one of around) {
      const found = one.isConnected ? firstIn(one) : null;
      if (found) return found;
    }
    return null;
  };
  const hold = (records: MutationRecord[] = []) => {
    if (isPointing || held === null || !isLost()) return;
    nearest(held, records)?.focus();
  };

  document.addEventListener("focusin", ({ target }) => {
    held = target instanceof HTMLElement && target !== document.body ? target : null;
    around = [];
    for (let one = held?.parentElement ?? null; one !== null && one !== document.body; one = one.parentElement) around.push(one);
  });
  // A click beside everything is meant.
  document.addEventListener("pointerdown", () => (isPointing = true), true);
  for (const end of ["pointerup", "pointercancel"]) document.addEventListener(end, () => setTimeout(() => (isPointing = false)), true);
  document.addEventListener("focusout", ({ relatedTarget }) => {
    if (relatedTarget !== null) return;
    if (isPointing) held = null;
    else setTimeout(hold); // a dialog gives the focus back after it has closed
  });
  new MutationObserver(hold).observe(root, { childList: true, subtree: true, attributes: true, attributeFilter: ["disabled", "hidden", "inert"] });
}
