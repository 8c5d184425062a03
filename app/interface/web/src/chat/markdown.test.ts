// @vitest-environment jsdom
import { h, render } from "preact";
import { describe, expect, test } from "vitest";

import { GrowingBlocks, blocks, fragment } from "./markdown";
import { Markdown } from "./text";

/** The text's blocks as sanitized HTML. */
const html = (text: string) => {
  const place = document.createElement("div");
  for (const block of blocks(text)) if (block.kind === "html") place.append(fragment(block));
  return place;
};

/** The text as it stands on the page. */
const shown = (text: string, isGrowing = false, place = document.createElement("div")) => {
  document.body.append(place);
  render(h(Markdown, { text, isGrowing }), place);
  return place;
};

const seen = (found: ReturnType<typeof blocks>) => found.map((block) => [block.kind, block.key.trim()]);

describe("a growing text", () => {
  test("has its earlier blocks as they are", () => {
    const text = "# Title\n\nOne *two*.\n\n```py\nprint(1)\n```\n\n- a\n- b\n\nEnd";
    const whole = blocks(text);
    for (let size = 1; size < text.length; size += 1) {
      const some = blocks(text.slice(0, size));
      some.slice(0, -1).forEach((block, place) => expect(block.key.trim()).toBe(whole[place]?.key.trim()));
    }
    expect(whole.map((block) => block.kind)).toEqual(["html", "html", "code", "html", "html"]);
  });

  test.each([
    "# Title\n\n1. one\n\n   more\n2. two\n\n> quoted\nlazy\n\n| a | b |\n| - | - |\n| 1 | 2 |\n\n```py\na = 1\n\nb = 2\n```\n\n$$\nx\n$$\n\n- a\n\n- b\n\n\n\nEnd\n===\n\nMore <b>html</b>\n\n<div>\n\nx\n\n</div>\n",
    "One\n\n<details>\n<summary>More</summary>\n\nTwo\n\n<details>\n\n```py\na\n```\n\n</details>\n\nThree\n\n</details>\n\nFour\n\nFive\n\nSix",
    "One[^a] and[^b]\n\nTwo[^a]\n\nThree\n\n[^a]: An *a*.\n[^b]: A b.\n\n    And more.\n\nFour",
  ])("is the same when only its end is read again: %j", (text) => {
    for (const step of [1, 2, 3, 7]) {
      const growing = new GrowingBlocks();
      for (let size = 0; size <= text.length; size += step) {
        expect(seen(growing.of(text.slice(0, size)))).toEqual(seen(blocks(text.slice(0, size))));
      }
      expect(seen(growing.of("Another"))).toEqual(seen(blocks("Another")));
    }
  });

  test("keeps what the reader did in a block that grows", () => {
    const place = shown("<details>\n<summary>S</summary>\n\nOne", true);
    const details = place.querySelector("details")!;
    const first = place.querySelector("details p")!.firstChild;
    details.open = true;
    shown("<details>\n<summary>S</summary>\n\nOne two\n\n- three", true, place);
    expect(place.querySelector("details")).toBe(details);
    expect(details.open).toBe(true);
    expect(place.querySelector("details p")!.firstChild).toBe(first);
    expect(place.querySelector("details li")?.textContent).toBe("three");
  });
});

test("formulas are found, and money is left alone", () => {
  const formulas = (text: string) => [...html(text).querySelectorAll(".formula")].map((one) => one.textContent);
  expect(formulas("$a_1$ and \\(b\\) and $$c$$")).toEqual(["a_1", "b", "c"]);
  expect(formulas("\\[\nx^2\n\\]")).toEqual(["x^2"]);
  expect(formulas("$$\nx<y\n$$")).toEqual(["x<y"]);
  expect(formulas("It costs $5 or $10.")).toEqual([]);
  expect(formulas("`$a$`")).toEqual([]);
});

test("tables stand in frames and keep their alignment, and tasks cannot be ticked", () => {
  const place = shown("| a | b |\n| :-: | -: |\n| 1 | 2 |\n\n- [x] done\n- [ ] open");
  expect(place.querySelector("div.table > table")).not.toBeNull();
  expect([...place.querySelectorAll("td")].map((one) => one.getAttribute("align"))).toEqual(["center", "right"]);
  const boxes = [...place.querySelectorAll("input")];
  expect(boxes.map((one) => [one.checked, one.disabled])).toEqual([[true, true], [false, true]]);
});

test("a line break is one", () => {
  expect(html("Roses\nare red").querySelectorAll("p > br")).toHaveLength(1);
});

test("code in a list, a quote or a <details> has the box with its button", () => {
  const code = "```py\na = 1\n\nb = 2\n```";
  const inside = (before: string) => code.replace(/^/gm, before);
  for (const text of [`1. Do:\n\n${inside("   ")}\n2. Done`, inside("> "), `<details>\n\n${code}\n\n</details>`]) {
    const box = shown(text).querySelector("figure.code")!;
    expect(box.querySelector("figcaption span")?.textContent).toBe("py");
    expect(box.querySelector("button")?.ariaLabel).toBe("Copy");
  }
  expect(html(`- a\n\n${inside("  ")}`).querySelector("pre")?.textContent?.trim()).toBe("a = 1\n\nb = 2");
});

describe("HTML in an answer", () => {
  test("counts where it only formats", () => {
    const place = shown("H<sub>2</sub>O, x<sup>2</sup>, <kbd>Ctrl</kbd>+<kbd>C</kbd>, a<br/>b\n\n<details>\n<summary>More</summary>\n\n**Bold**\n\n</details>\n\nAfter");
    expect(["sub", "sup", "kbd", "br", "details > summary"].map((one) => place.querySelectorAll(one).length)).toEqual([1, 1, 2, 1, 1]);
    expect(place.querySelector("details strong")?.textContent).toBe("Bold");
    expect(place.lastElementChild?.textContent?.trim()).toBe("After");
    expect(place.lastElementChild?.closest("details")).toBeNull();
  });

  test("is text otherwise, so that nothing of it is lost", () => {
    expect(html("A Vec<String> and <div class='x'>this</div> &amp; 1 < 2").textContent?.trim()).toBe("A Vec<String> and <div class='x'>this</div> & 1 < 2");
    expect(html("<section>\nIn it\n</section>").textContent?.trim()).toBe("<section>\nIn it\n</section>");
    expect(html("Use <script> and <kbd>a < b</kbd>").textContent?.trim()).toBe("Use <script> and a < b");
  });

  const HOSTILE = [
    '<img src=x onerror=alert(1)> <script>alert(1)</script> ![p](http://evil.test/p.png) [j](javascript:alert(1))',
    "<svg onload=alert(1)><style>@import 'http://evil.test'</style></svg>",
    '<kbd style="position:fixed" onclick="alert(1)" id="message" class="formula" name="body">x</kbd>',
    '<details open ontoggle=alert(1) id=surface><summary style=x>s</summary>\n\nt\n\n</details>',
    '<sub title="><img src=x onerror=alert(1)>">x</sub>',
    "<details><summary><iframe src=//evil.test></iframe></summary>\n<math><mtext><table><mglyph><style><!--</style><img title=\"--&gt;&lt;img src=1 onerror=alert(1)&gt;\">",
    '<a href="http://evil.test" id=x>a</a><form action=//evil.test><input name=attributes><button formaction=//evil.test>',
    "<link rel=stylesheet href=//evil.test><base href=//evil.test><meta http-equiv=refresh content=0>",
    '[^__proto__] [^"><img src=x onerror=alert(1)>] [^message]\n\n[^__proto__]: <img src=x onerror=alert(1)>\n[^"><img src=x onerror=alert(1)>]: two\n[^message]: three',
    '```py" onmouseover="alert(1)\nx\n```\n\n- ```"><img/src=x>\n  y\n  ```',
    '<video poster=//evil.test/x.png src=//evil.test></video><object data=//evil.test></object><embed src=//evil.test>',
    '[x](http://evil.test "t\" onclick=alert(1) x=\"") <http://evil.test/"onclick=alert(1)>',
    '<sup\n style="background:url(//evil.test)"\n>x</sup>', '<kbd/style=x/onclick=alert(1)>x</kbd>', "<details\u0000 style=x>", "<BR CLEAR=all STYLE=x>",
  ];
  const NAMES = new Set(["href", "class", "align", "start", "type", "checked", "disabled", "title", "target", "rel", "dir", "role", "tabindex", "aria-label", "aria-hidden", "viewBox", "d", "id"]);

  test.each(HOSTILE)("runs, loads, styles and names nothing: %j", (text) => {
    for (const place of [shown(text), shown(`- ${text.replace(/\n/g, "\n  ")}`), shown(`<details>\n\n${text}`, true)]) {
      expect(place.querySelector("img, script, style, link, base, meta, iframe, object, embed, video, form, math, svg:not(.icon)")).toBeNull();
      for (const one of place.querySelectorAll("*")) {
        for (const { name } of one.attributes) expect(NAMES).toContain(name);
        if (one.id) expect(one.id).toMatch(/^P[\d-]+note-/);
        expect(one.getAttribute("class") ?? "block").toMatch(/^(block|code|bare|icon|table|formula|notes?|label|language-\S+)$/);
        const href = one.getAttribute("href");
        if (href !== null) expect(href).toMatch(/^(https?:|mailto:|#P[\d-]+note-)/);
        if (href?.startsWith("http")) expect([one.getAttribute("target"), one.getAttribute("rel")]).toEqual(["_blank", "noopener noreferrer"]);
      }
    }
  });
});

describe("footnotes", () => {
  const text = "One[^1] and two[^b], and one[^1] again.\n\n[^1]: First, *whole*.\n[^b]: Second.\n[^c]: Of nothing.";

  test("are linked both ways", () => {
    const place = shown(text);
    const marks = [...place.querySelectorAll<HTMLElement>("sup > a")];
    expect(marks.map((one) => one.textContent)).toEqual(["1", "b", "1"]);
    expect([...place.querySelectorAll(".notes .note > div")].map((one) => one.textContent?.trim())).toEqual(["First, whole.", "Second."]);
    Element.prototype.scrollIntoView ??= () => {};
    marks[1]!.click();
    expect(document.activeElement?.textContent).toContain("Second.");
    document.activeElement?.querySelector<HTMLElement>("[role=doc-backlink]")?.click();
    expect(document.activeElement).toBe(marks[1]);
    expect(location.hash).toBe("");
  });

  test("of two answers are apart, and what refers to none is text", () => {
    const both = document.createElement("div");
    document.body.append(both);
    render([h(Markdown, { text, isGrowing: false }), h(Markdown, { text, isGrowing: false })], both);
    const ids = [...both.querySelectorAll("[id]")].map((one) => one.id);
    expect(ids).toHaveLength(8);
    expect(new Set(ids).size).toBe(8);
    expect(shown("None[^9].").textContent?.trim()).toBe("None[^9].");
  });

  test("come while the answer is written", () => {
    const place = shown(text.slice(0, 60), true);
    expect(place.querySelectorAll("sup")).toHaveLength(2);
    shown(text, true, place);
    expect(place.querySelectorAll("sup")).toHaveLength(3);
  });
});
