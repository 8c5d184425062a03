// "Sign out" on the chat page, for who has a session. Gradio builds the page, and the button hidden; it knows no session.
import { call } from "../common/api";

const BUTTON = "#sign-out";

/** Gradio's own scripts build the page after this one has run. */
async function button(): Promise<HTMLButtonElement> {
  for (;;) {
    const found = document.querySelector<HTMLButtonElement>(BUTTON);
    if (found) return found;
    await new Promise(requestAnimationFrame);
  }
}

async function signOut(event: Event): Promise<void> {
  const pressed = event.currentTarget as HTMLButtonElement;
  pressed.disabled = true;
  try {
    await call("POST", "/v1/auth/logout", {});
  } catch {
    // Whether the session holds is for the account's page to say, which leads to /login if it does not.
    location.assign("/account");
    return;
  }
  location.replace("/login"); // in place of the chat, which "back" would show again
}

call("GET", "/v1/auth/session").then(
  async () => {
    const shown = await button();
    shown.addEventListener("click", signOut);
    shown.dataset.ready = ""; // no class: those are Gradio's to write
  },
  () => {}, // a guest
);
