// Files that are dropped anywhere on the page are attached to the draft.
import { useEffect, useState } from "preact/hooks";

import type { Chat } from "./chat";
import { isMute } from "./service";

export function Drop({ chat }: { chat: Chat }) {
  const [isOver, setOver] = useState(false);
  useEffect(() => {
    const ended = new AbortController();
    const hasFiles = (event: DragEvent) => event.dataTransfer?.types.includes("Files") ?? false;
    const mayTake = () => !isMute(chat.state.models, chat.state.model) && !document.querySelector("dialog[open]");
    const on = (name: "dragenter" | "dragover" | "dragleave" | "drop", then: (event: DragEvent) => void) => {
      addEventListener(name, (event) => hasFiles(event) && then(event), { signal: ended.signal });
    };
    on("dragenter", () => setOver(mayTake()));
    // Without this the browser leaves the page and shows the file.
    on("dragover", (event) => event.preventDefault());
    on("dragleave", (event) => event.relatedTarget === null && setOver(false));
    on("drop", (event) => {
      event.preventDefault();
      setOver(false);
      if (mayTake()) chat.files.add([...event.dataTransfer!.files]);
    });
    return () => ended.abort();
  }, [chat]);
  return isOver ? <div class="drop" aria-hidden="true">Drop files to ask about them</div> : null;
}
