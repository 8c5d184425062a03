// How the pages are built: one HTML document an entry, everything else under /ui/assets with a hash in its name, each
// beside itself as Brotli and gzip. Nothing is inlined, since the pages' Content-Security-Policy allows no inline script or
// style; only the icon is an address that holds it. The chat is a build of its own (the other pages': `--mode users`), so
// that it comes as one script and shares none with them. Of its document there are others: one says that the service has
// accounts, and one that the local proxy serves it, whose package gets the chat too.
import { cpSync, readFileSync, readdirSync, rmSync, writeFileSync } from "node:fs";
import { brotliCompressSync, constants, gzipSync } from "node:zlib";
import { defineConfig } from "vitest/config";

const ICON = `data:image/svg+xml,${encodeURIComponent(readFileSync(new URL("public/icon.svg", import.meta.url), "utf8").trim())}`;
const BROTLI = { params: { [constants.BROTLI_PARAM_QUALITY]: constants.BROTLI_MAX_QUALITY } };

const PROXY = new URL("../../../verify/redoubt_verify/page/", import.meta.url).pathname;
const marked = (html, name) => html.replace("<title>", `<meta name="${name}" content="yes" />\n    <title>`);

/** Puts the chat into the proxy's package. */
function forProxy(chat) {
  rmSync(PROXY, { recursive: true, force: true });
  cpSync("dist", `${PROXY}ui`, { recursive: true, filter: (path) => !/\.html$/.test(path) });
  writeFileSync(`${PROXY}index.html`, marked(chat, "redoubt-proxy"));
}

const finish = (isChat) => ({
  name: "finish",
  apply: "build",
  transformIndexHtml: (html) => html.replace("%ICON%", ICON),
  generateBundle(_, bundle) {
    // Every browser that runs the pages reads WOFF2.
    for (const name of Object.keys(bundle)) if (/\.(woff|ttf)$/.test(name)) delete bundle[name];
  },
  closeBundle() {
    const chat = readFileSync("dist/chat.html", "utf8");
    writeFileSync("dist/chat-accounts.html", marked(chat, "redoubt-accounts"));
    if (isChat) forProxy(chat);
    for (const { name, parentPath } of readdirSync("dist", { recursive: true, withFileTypes: true })) {
      if (!/\.(html|js|css|svg|webmanifest)$/.test(name)) continue;
      const path = `${parentPath}/${name}`;
      writeFileSync(`${path}.br`, brotliCompressSync(readFileSync(path), BROTLI));
      writeFileSync(`${path}.gz`, gzipSync(readFileSync(path), { level: 9 }));
    }
  },
});

export default defineConfig(({ mode }) => ({
  base: "/ui/",
  build: {
    target: "es2022",
    assetsInlineLimit: 0,
    modulePreload: { polyfill: false },
    emptyOutDir: mode !== "users",
    rollupOptions: { input: mode === "users" ? ["login.html", "account.html", "operator.html"] : ["chat.html"] },
  },
  plugins: [finish(mode !== "users")],
  esbuild: { jsx: "automatic", jsxImportSource: "preact" },
  test: { include: ["src/**/*.test.ts"] },
}));
