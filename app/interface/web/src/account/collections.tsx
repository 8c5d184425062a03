// The user's collections of documents, and those that are shared with the user. One of them is open.
import { useEffect, useState } from "preact/hooks";

import { useAction } from "../common/action";
import { call } from "../common/api";
import { bytes, counted } from "../common/numbers";
import { Told } from "../common/told";
import { Opened } from "./collection";
import { type Collection, collections } from "./documents";

export function Collections({ isAdmin }: { isAdmin: boolean }) {
  const [shown, setShown] = useState<Collection[] | null>(null);
  const [openId, setOpen] = useState("");
  const { isBusy, outcome, run, dismiss } = useAction();

  const look = async () => setShown(await collections());
  useEffect(() => {
    void run(async () => {
      await look();
      return "";
    });
  }, []);

  function make(event: SubmitEvent) {
    event.preventDefault();
    const form = event.currentTarget as HTMLFormElement;
    const name = String(new FormData(form).get("name")).trim();
    void run(async () => {
      const made = await call<Collection>("POST", "/v1/vector_stores", { name });
      form.reset();
      await look();
      setOpen(made.id);
      return `Made: ${name}. Add documents to it.`;
    });
  }
  const gone = (one: Collection) =>
    run(async () => {
      setOpen("");
      await look();
      return `Deleted: ${one.name || "Unnamed"}. Its key is destroyed.`;
    });

  return (
    <section class="card" aria-labelledby="collections">
      <h2 id="collections">Collections</h2>
      <p class="quiet small">Documents that a chat can be asked about. What is read of them is encrypted with a key of each collection.</p>
      {shown?.length === 0 && <p class="quiet small">There is none.</p>}
      <ul>
        {shown?.map((one) => (
          <li key={one.id}>
            <div class="row apart">
              <span>
                {one.name || "Unnamed"}
                <br />
                <span class="quiet small">
                  {counted(one.file_counts.total, "document")}, {bytes(one.usage_bytes)}{one.shared && ", shared with you"}
                </span>
              </span>
              <button
                data-id={one.id} aria-expanded={openId === one.id} aria-label={`${openId === one.id ? "Close" : "Open"} ${one.name || "Unnamed"}`}
                onClick={() => setOpen(openId === one.id ? "" : one.id)}
              >
                {openId === one.id ? "Close" : "Open"}
              </button>
            </div>
            {openId === one.id && <Opened collection={one} isAdmin={isAdmin} changed={() => void look().catch(() => undefined)} gone={() => void gone(one)} />}
          </li>
        ))}
      </ul>
      <form onSubmit={make}>
        <label>Name of a new collection<input name="name" required maxLength={256} autocomplete="off" /></label>
        <div><button class="main" aria-disabled={isBusy}>Make a collection</button></div>
      </form>
      <Told outcome={outcome} dismiss={dismiss} />
    </section>
  );
}
