// How the pages are built: one HTML document an entry, everything else under /ui/assets with a hash in its name.
// Nothing is inlined, since the pages' Content-Security-Policy allows no inline script or style.
import { defineConfig } from "vitest/config";

export default defineConfig({
  base: "/ui/",
  build: {
    target: "es2022",
    assetsInlineLimit: 0,
    modulePreload: { polyfill: false },
    manifest: true, // the chat page is another document, which finds its script there
    rollupOptions: { input: ["login.html", "account.html", "operator.html", "src/chat/main.tsx"] },
  },
  esbuild: { jsx: "automatic", jsxImportSource: "preact" },
  test: { include: ["src/**/*.test.ts"] },
});
