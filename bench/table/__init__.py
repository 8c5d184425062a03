"""The tables of docs/benchmarks.md, docs/benchmark-details.md and bench/results/README.md: `redoubt bench table`.

`command` is the procedure, `runs` what it measures and how long that takes, `results` reads what was measured,
`cells` chooses what a table shows, `pages` writes the Markdown. `conversations` has the tables of what
`redoubt bench conversations` measured. How a comparison is made is `bench.compare`'s affair.
"""
