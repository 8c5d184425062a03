// No file imports itself by way of others, types included: each can be read without those above it.
import { expect, test } from "vitest";

const IMPORT = /(?:\bfrom|\bimport)\s*\(?\s*"(\.[^"]*)"/g;
const SOURCES = import.meta.glob<string>("../**/*.{ts,tsx}", { query: "?raw", import: "default", eager: true });

/** Maps each file's path to the paths that it imports. */
function importsOf(sources: Record<string, string>): Map<string, string[]> {
  const files = new Map(Object.entries(sources).map(([path, text]) => [new URL(path, "file:///src/common/").pathname, text]));
  const found = (path: string) => ["", ".ts", ".tsx"].map((ending) => path + ending).find((one) => files.has(one));
  const imported = (path: string, text: string) =>
    [...text.matchAll(IMPORT)].flatMap(([, name]) => found(new URL(name!, `file://${path}`).pathname) ?? []);
  return new Map([...files].map(([path, text]) => [path, imported(path, text)]));
}

/** Returns the paths of an import cycle, with the first one again at the end; empty: there is none. */
function circle(imports: Map<string, string[]>): string[] {
  const done = new Set<string>();
  const walk = (path: string, way: string[]): string[] => {
    if (way.includes(path)) return [...way.slice(way.indexOf(path)), path];
    if (done.has(path)) return [];
    for (const next of imports.get(path) ?? []) {
      const found = walk(next, [...way, path]);
      if (found.length) return found;
    }
    done.add(path);
    return [];
  };
  for (const path of imports.keys()) {
    const found = walk(path, []);
    if (found.length) return found;
  }
  return [];
}

test("no file imports itself by way of others", () => {
  const imports = importsOf(SOURCES);
  expect(imports.get("/src/chat/chat.ts")).toContain("/src/chat/conversations.ts");
  expect(circle(imports)).toEqual([]);
});

test("a circle is found, through types and later imports too", () => {
  const sources = {
    "../chat/a.tsx": 'import type { B } from "./b";\nimport "../common/c";',
    "../chat/b.ts": 'const { d } = await import("./a");',
    "./c.ts": 'import { render } from "preact";',
  };
  expect(circle(importsOf(sources))).toEqual(["/src/chat/a.tsx", "/src/chat/b.ts", "/src/chat/a.tsx"]);
});
