// The chat surface: mounted in an element of the page that the service's Gradio application delivers.
import { render } from "preact";

import "./style.css";
import { App } from "./app";
import { Chat } from "./chat";
import { idOf } from "./state";

/** A phone's keyboard covers what lies below it: the surface ends above. */
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

function mount(): void {
  const place = document.createElement("div");
  place.id = "surface";
  document.body.prepend(place);
  const chat = new Chat(sessionStorage, document.querySelector('meta[name="redoubt-accounts"]') !== null);
  fit(place);
  addEventListener("pagehide", () => chat.flush());
  const id = idOf(location);
  if (location.search) history.replaceState(null, "", id ? `/c/${id}` : "/");
  void chat.begin(id);
  render(<App chat={chat} />, place);
}

mount();
