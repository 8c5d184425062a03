// The page `/`: the chat.
import { render } from "preact";

import cards from "./cards.css?inline";
import style from "./style.css?inline";
import { keepFocus } from "../common/focus";
import { App } from "./app";
import { Chat } from "./chat";
import { idOf } from "./state";
import { isTouched } from "./touch";

/** A phone's keyboard covers the lower part of the page: the user interface ends above it. */
function fit(place: HTMLElement): void {
  const shown = window.visualViewport;
  if (!shown) return;
  const resize = () => {
    place.style.setProperty("--height", `${shown.height}px`);
    place.style.top = `${shown.offsetTop}px`;
  };
  shown.addEventListener("resize", resize);
  shown.addEventListener("scroll", resize);
  resize();
}

/** What gets the focus that an element has lost: the message, or by touch the chat, where no keyboard comes and covers it. */
function spareOf(around: Element[]): HTMLElement | null {
  const sidebar = around.find((one) => one.matches(".sidebar"));
  if (sidebar?.checkVisibility({ visibilityProperty: true })) return null;
  return document.querySelector<HTMLElement>(isTouched() ? ".thread" : "#message");
}

function mount(): void {
  // The styles come with the script: one request less before the page can be used.
  const sheet = new CSSStyleSheet();
  sheet.replaceSync(style + cards);
  document.adoptedStyleSheets = [sheet];
  const place = document.getElementById("surface")!;
  const chat = new Chat(sessionStorage, document.querySelector('meta[name="redoubt-accounts"]') !== null);
  fit(place);
  addEventListener("pagehide", () => chat.flush(true));
  const id = idOf(location);
  void chat.begin(id);
  render(<App chat={chat} />, place);
  keepFocus(place, spareOf);
}

mount();
