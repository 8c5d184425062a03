// How the page is used: by touch, where a keyboard on the screen has Enter alone for a new line, or with keys.

export const isTouched = (): boolean => matchMedia("(pointer: coarse)").matches;

/** Whether a key sends the text: Enter, and on a touch screen only with Ctrl. */
export function isSending(event: KeyboardEvent): boolean {
  if (event.key !== "Enter" || event.isComposing) return false;
  return event.ctrlKey || event.metaKey || (!event.shiftKey && !isTouched());
}
