import { expect, test } from "vitest";

import { bytes, counted } from "./numbers";

test("bytes", () => {
  const written = [0, 999, 1000, 999_949, 999_950, 1_500_000_000, 8_589_934_592, 123_456].map(bytes);
  expect(written).toEqual(["0 B", "999 B", "1 kB", "1000 kB", "1 MB", "1.5 GB", "8.6 GB", "123 kB"]);
});

test("counts", () => {
  expect([counted(0, "page"), counted(1, "page"), counted(2000, "page")]).toEqual(["0 pages", "1 page", "2,000 pages"]);
});
