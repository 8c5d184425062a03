// The user's limits, and what is used of them.
import { useEffect, useState } from "preact/hooks";

import { useAction } from "../common/action";
import { call } from "../common/api";
import { bytes } from "../common/numbers";
import { Told } from "../common/told";

interface Limit {
  limit: number | null;
  used: number | null;
}

type Name = "requests_per_minute" | "tokens_per_day" | "concurrent" | "stored_bytes";

const LOOK_AGAIN_MS = 10_000;
const count = (value: number) => value.toLocaleString("en");
const SHOWN: [Name, string, (value: number) => string][] = [
  ["tokens_per_day", "Tokens today (UTC)", count],
  ["requests_per_minute", "Requests in the last minute", count],
  ["concurrent", "Requests running now", count],
  ["stored_bytes", "Stored chats", bytes],
];

export function Limits() {
  const [limits, setLimits] = useState<Record<Name, Limit> | null>(null);
  const { outcome, run } = useAction();
  useEffect(() => {
    const look = () =>
      document.hidden ||
      run(async () => {
        setLimits(await call<Record<Name, Limit>>("GET", "/v1/auth/limits"));
        return "";
      });
    void look();
    const timer = setInterval(look, LOOK_AGAIN_MS);
    return () => clearInterval(timer);
  }, []);

  return (
    <section class="card" aria-labelledby="limits">
      <h2 id="limits">Limits</h2>
      <ul>
        {limits && SHOWN.map(([name, label, worded]) => <Row key={name} label={label} {...limits[name]} worded={worded} />)}
      </ul>
      <Told outcome={outcome} />
    </section>
  );
}

function Row({ label, limit, used, worded }: Limit & { label: string; worded: (value: number) => string }) {
  const most = limit === null ? "no limit" : worded(limit);
  return (
    <li>
      <div class="row apart">
        <span>{label}</span>
        <span>{used === null ? most : limit === null ? `${worded(used)}, ${most}` : `${worded(used)} of ${most}`}</span>
      </div>
      {limit !== null && used !== null && <progress aria-label={label} max={Math.max(1, limit)} value={Math.min(used, limit)} />}
    </li>
  );
}
