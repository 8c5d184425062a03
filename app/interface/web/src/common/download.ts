// Downloads: files made by the page, or the service's, requested with the user's session.
import { ApiFailure } from "./api";
import { asUser } from "./session";

const KEPT_MS = 10_000;

export function saveFile(content: Blob, name: string): void {
  const link = document.createElement("a");
  link.href = URL.createObjectURL(content);
  link.download = name;
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), KEPT_MS);
}

/** Downloads a conversation that the service stores. Throws ApiFailure. */
export async function saveConversation(id: string, kind: "md" | "json"): Promise<void> {
  const path = `/v1/conversations/${encodeURIComponent(id)}/export?format=${kind}`;
  const response = await fetch(path, { headers: asUser() }).catch(() => null);
  if (!response?.ok) {
    const answer = (await response?.json().catch(() => null)) as { error?: { code?: string; message?: string } } | null;
    throw new ApiFailure(response?.status ?? 0, answer?.error?.code ?? null, answer?.error?.message ?? "");
  }
  saveFile(await response.blob(), `${id}.${kind}`);
}
