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

/** What stands for the same as one of these elements, by their `data-id`: a row that moved, another version of an answer. */
function sameAs(root: Element, lost: Element[]): HTMLElement | null {
  for (const one of lost) {
    const id = one.getAttribute("data-id");
    const found = id === null ? null : firstIn(root.querySelector(`[data-id="${CSS.escape(id)}"]`));
    if (found) return found;
  }
  return null;
}

/** `spare`: what gets the focus instead of the nearest element, by the ancestors of the lost one; null: the nearest. */
export function keepFocus(root: HTMLElement, spare: (around: Element[]) => HTMLElement | null): void {
  let held: HTMLElement | null = null;
  let around: Element[] = [];
  /** What stood around the lost element when it went: what came in its place, then its neighbours. */
  let neighbours: Node[] = [];
  let isPointing = false;

  const isLost = () => {
    const now = document.activeElement;
    // Tab behind the last element leaves the page, and one that still can have the focus was left on purpose.
    return held !== null && !canFocus(held) && (now === null || now === document.body || now === held);
  };
  const nearest = (lost: HTMLElement): HTMLElement | null => {
    const moved = sameAs(root, [lost, ...around]) ?? spare(around);
    if (moved !== null) return moved;
    for (const one of [...neighbours, ...around.filter(({ isConnected }) => isConnected)]) {
      const found = firstIn(one);
      if (found) return found;
    }
    return null;
  };
  const hold = () => {
    if (!isPointing && held !== null && isLost()) nearest(held)?.focus();
  };

  const remember = (one: EventTarget | null) => {
    if (one === held) return;
    held = one instanceof HTMLElement && one !== document.body ? one : null;
    [around, neighbours] = [[], []];
    for (let above = held?.parentElement ?? null; above !== null && above !== document.body; above = above.parentElement) around.push(above);
  };
  document.addEventListener("focusin", ({ target }) => remember(target));
  // A window that is not in front has no focus events.
  document.addEventListener("keydown", () => remember(document.activeElement), true);
  document.addEventListener("pointerdown", () => (isPointing = true), true);
  for (const end of ["pointerup", "pointercancel"]) {
    document.addEventListener(end, () => setTimeout(() => ((isPointing = false), hold())), true);
  }
  document.addEventListener("focusout", ({ target, relatedTarget }) => {
    if (relatedTarget !== null) return;
    const wasPointing = isPointing;
    // Later, as a browser also says so just before the element goes, or before a closed dialog gives the focus back.
    setTimeout(() => {
      // A click beside everything is meant.
      if (wasPointing && target === held && held?.isConnected && !held.matches(":disabled")) held = null;
      else hold();
    });
  });
  new MutationObserver((records) => {
    const removal = records.find(({ removedNodes }) => [...removedNodes].some((node) => node.contains(held)));
    if (held !== null && removal) {
      const inPlace = records.filter(({ target }) => target === removal.target).flatMap(({ addedNodes }) => [...addedNodes]);
      neighbours = [...inPlace, removal.nextSibling, removal.previousSibling].filter((node) => node !== null);
    }
    hold();
  }).observe(root, { childList: true, subtree: true, attributes: true, attributeFilter: ["disabled", "hidden", "inert"] });
}
