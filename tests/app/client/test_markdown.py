"""Markdown that grows: what is given for good is the same however the text comes, and nothing of it is lost."""

import re

import pytest

from app.client.markdown import GrowingMarkdown, Line

TEXT = r"""# Title *it*

Some **bold** words, <b>no HTML</b>, \(x_1\), [a link](http://a.b/c).
<http://d.e> ![drawn](f.png)
The same paragraph. [1]: http://x

1. one
1. two
   - nested

   again in two
1. three

[2]: http://ref.er

```python
def f():

	return "*"
```
- x
- y

| a | b |
|---|--:|
| 1 | 2 |

> quoted

Setext
======
the **end"""
SHOWN = """\
Title it

Some bold words, <b>no HTML</b>, \\(x_1\\), a link
(http://a.b/c). http://d.e drawn (f.png) The same paragraph.
[1]: http://x

 1 one
 2 two
    • nested
   again in two
 3 three

[2]: http://ref.er

```python
def f():

    return "*"
```

 • x
 • y

 a  b
 ────
 1  2

▌ quoted

Setext

the **end"""


def plain(lines: list[Line]) -> str:
    return re.sub(r"\x1b\[[0-9;]*m", "", "\n".join(line.text for line in lines))


@pytest.mark.parametrize("size", [1, 5, 10_000])
def test_the_lines_do_not_depend_on_how_the_text_comes(size: int) -> None:
    markdown = GrowingMarkdown()
    done: list[Line] = []
    for at in range(0, len(TEXT), size):
        stays, _ = markdown.take(TEXT[at : at + size], 60)
        done += stays
    stays, may_change = markdown.take("", 60, is_over=True)
    assert plain([*done, *stays]) == SHOWN
    assert may_change == []


def test_only_the_open_block_may_change() -> None:
    markdown = GrowingMarkdown()
    assert [plain(lines) for lines in markdown.take("one\n\ntwo **b", 60)] == ["", "one\n\ntwo **b"]
    assert [plain(lines) for lines in markdown.take("** is\n", 60)] == ["one", "\ntwo b is"]
    assert [plain(lines) for lines in markdown.take("\n```sh\nls -l\necho", 60)] == [
        "\ntwo b is\n\n```sh\nls -l",
        "echo",
    ]
    assert [plain(lines) for lines in markdown.take(" a\n```", 60)] == ["echo a", ""]
    assert [plain(lines) for lines in markdown.take("\n", 60)] == ["```", ""]


def test_code_is_not_wrapped() -> None:
    line = "x = " + "1 + " * 40 + "1"
    done, _ = GrowingMarkdown().take(f"```python\n{line}\n", 40)
    assert plain(done) == f"```python\n{line}"
    assert done[1].cells == len(line)


def test_code_keeps_its_colours_across_pieces() -> None:
    markdown = GrowingMarkdown()
    markdown.take('```python\n"""a text\n', 60)
    (line,), _ = markdown.take("not = 1\n", 60)
    assert line.text.count("\x1b[33") == 1  # a string, and no name and number
