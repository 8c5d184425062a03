// The files of a question that was sent: each opens what the model sees of it.
import { pagesOf } from "./files";
import { Icon } from "./icons";
import type { Attached } from "./tree";

export function FileChips({ files, view }: { files: Attached[] | undefined; view: (file: Attached) => void }) {
  if (!files) return null;
  return (
    <ul class="files" aria-label="Files">
      {files.map((one, place) => (
        <li key={place} class="chip"><FileButton file={one} view={view} /></li>
      ))}
    </ul>
  );
}

/** A file's name and size; opens it. */
export function FileButton({ file, view }: { file: Attached; view: (file: Attached) => void }) {
  return (
    <button type="button" class="bare file" title="What the model sees of it" onClick={() => view(file)}>
      <Icon name="file" />
      <span><b dir="auto">{file.name}</b> <span class="quiet small">{sizeOf(file)}</span></span>
    </button>
  );
}

/** "12 pages, 3,456 tokens". */
export function sizeOf(file: Attached): string {
  const tokens = file.tokens ? `${file.tokens.toLocaleString("en")} tokens` : "";
  return [pagesOf(file), tokens].filter(Boolean).join(", ");
}
