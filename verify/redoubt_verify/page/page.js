// The chat page of the local proxy: shows the verdict, and sends nothing while there is none.
const at = (id) => document.getElementById(id);
const messages = [];

function headers() {
  const key = at("key").value;
  return { "Content-Type": "application/json", ...(key ? { Authorization: `Bearer ${key}` } : {}) };
}

async function showVerdict() {
  const answer = await (await fetch("verdict.json")).json();
  const place = at("verdict");
  at("details").textContent = JSON.stringify(answer, null, 2);
  at("send").disabled = Boolean(answer.refused);
  if (answer.refused) {
    place.className = "refused";
    place.textContent = `REFUSED: ${answer.why}. Nothing is sent.`;
    return false;
  }
  const verdict = answer.verdicts[0];
  const open = verdict.unpinned.length ? ` Not pinned: ${verdict.unpinned.join(", ")}.` : "";
  place.className = verdict.insecure ? "insecure" : "verified";
  place.textContent = verdict.insecure
    ? "INSECURE: a test key signed this evidence. No processor protects what you send."
    : `Verified: ${answer.service} runs in a TDX trust domain (${verdict.tcb_status}, ${verdict.verified_at}).${open}`;
  return true;
}

async function listModels() {
  const answer = await (await fetch("v1/models", { headers: headers() })).json();
  const names = (answer.data || []).map((model) => model.id);
  at("model").replaceChildren(...names.map((name) => new Option(name)));
}

function add(role, text) {
  const place = document.createElement("div");
  place.className = role;
  place.textContent = text;
  at("chat").append(place);
  return place;
}

async function ask(event) {
  event.preventDefault();
  const content = at("prompt").value;
  at("send").disabled = true;
  try {
    if (!(await showVerdict())) return;
    if (!at("model").value) await listModels();
    messages.push({ role: "user", content });
    add("user", content);
    at("prompt").value = "";
    const body = JSON.stringify({ model: at("model").value, messages, stream: true });
    const response = await fetch("v1/chat/completions", { method: "POST", headers: headers(), body });
    const place = add("assistant", "");
    if (!response.ok) {
      place.textContent = ((await response.json()).error || {}).message || `Error ${response.status}`;
      return;
    }
    await read(response, place);
    messages.push({ role: "assistant", content: place.textContent });
  } finally {
    at("send").disabled = at("verdict").className === "refused";
  }
}

async function read(response, place) {
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    const { done, value } = await reader.read();
    if (done) return;
    const lines = (rest + value).split("\n");
    rest = lines.pop();
    for (const line of lines) {
      if (!line.startsWith("data: ") || line === "data: [DONE]") continue;
      const [choice] = JSON.parse(line.slice(6)).choices || [];
      place.textContent += (choice && choice.delta && choice.delta.content) || "";
    }
  }
}

at("ask").addEventListener("submit", ask);
showVerdict().then((verified) => verified && listModels());
