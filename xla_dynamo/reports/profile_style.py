"""The look of the page of a profile, in light and in dark."""

STYLE = """
:root { color-scheme: light dark;
  --back: #f6f7f9; --card: #fff; --text: #1c2430; --dim: #667085; --edge: #e4e7ec; --bar: #dbe7fb;
  --c0: #3b76d6; --c1: #20a39e; --c2: #ef8b2c; --c3: #8e5bd0; --c4: #d94f70; --c5: #7a9a3a;
  --c6: #4aa8d8; --c7: #9aa4b2; }
@media (prefers-color-scheme: dark) { :root {
  --back: #12161d; --card: #1b212b; --text: #e6e9ef; --dim: #94a0b3; --edge: #2c3542;
  --bar: #24405f; --c0: #6ea0f0; --c1: #45c4bd; --c2: #f3a85c; --c3: #b48ae8; --c4: #ec7f98;
  --c5: #a3c060; --c6: #7cc6ec; --c7: #75808f; } }
* { box-sizing: border-box; }
body { background: var(--back); color: var(--text); margin: 0; padding: 1.5rem;
  font: 14px/1.45 system-ui, "Segoe UI", "DejaVu Sans", sans-serif; }
main { max-width: 84rem; margin: 0 auto; }
h1 { font-size: 1.35rem; margin: 0 0 .2rem; } h2 { font-size: 1rem; margin: 0 0 .6rem; }
p.dim, .dim { color: var(--dim); margin: 0 0 .6rem; }
section { background: var(--card); border: 1px solid var(--edge); border-radius: .7rem;
  padding: 1rem 1.2rem; margin: 1rem 0; }
.cards { display: grid; grid-template-columns: repeat(auto-fit, minmax(10rem, 1fr)); gap: .8rem;
  margin: 1rem 0; }
.cards div { background: var(--card); border: 1px solid var(--edge); border-radius: .7rem;
  padding: .7rem 1rem; }
.cards b { display: block; font-size: 1.35rem; font-weight: 650; }
.cards span { color: var(--dim); font-size: .85rem; }
.two { display: grid; grid-template-columns: 1fr 1fr; gap: 1rem; align-items: start; }
.two { margin: 1rem 0; } .two section { margin: 0; min-width: 0; }
@media (max-width: 70rem) { .two { grid-template-columns: 1fr; } }
.bar { display: flex; height: 1.5rem; border-radius: .35rem; overflow: hidden;
  background: var(--edge); }
.bar i { display: block; height: 100%; }
ul.legend { list-style: none; display: flex; flex-wrap: wrap; gap: .2rem 1.2rem; margin: .6rem 0 0;
  padding: 0; }
ul.legend b { display: inline-block; width: .7rem; height: .7rem; border-radius: .2rem;
  margin-right: .4rem; }
ul.legend span { color: var(--dim); }
.c0 { background: var(--c0); fill: var(--c0); } .c1 { background: var(--c1); fill: var(--c1); }
.c2 { background: var(--c2); fill: var(--c2); } .c3 { background: var(--c3); fill: var(--c3); }
.c4 { background: var(--c4); fill: var(--c4); } .c5 { background: var(--c5); fill: var(--c5); }
.c6 { background: var(--c6); fill: var(--c6); } .c7 { background: var(--c7); fill: var(--c7); }
code, .mono { font: 12.5px/1.45 ui-monospace, "DejaVu Sans Mono", monospace; }
.row { display: grid; gap: .8rem; align-items: center; padding: .3rem .4rem;
  grid-template-columns: 1.6rem 8.5rem minmax(0, 1fr) 5.5rem 5rem 4.5rem 4.5rem; }
.row > span { text-align: right; white-space: nowrap; font-variant-numeric: tabular-nums; }
.head { color: var(--dim); font-size: .8rem; border-bottom: 1px solid var(--edge); }
.head > div { text-align: left; }
details.line { border-bottom: 1px solid var(--edge); }
details > summary { list-style: none; cursor: pointer; }
details > summary::-webkit-details-marker { display: none; }
summary .mark::before { content: "▸"; color: var(--dim); }
details[open] > summary .mark::before { content: "▾"; }
details.line > summary:hover { background: color-mix(in srgb, var(--bar) 35%, transparent); }
.share { position: relative; border-radius: .25rem; height: 1.45rem; background: none; }
.share i { position: absolute; inset: 0 auto 0 0; background: var(--bar); border-radius: .25rem; }
.share i.back { background: var(--c0); opacity: .35; }
.share em { position: absolute; inset: 0; padding: 0 .4rem; font-style: normal;
  line-height: 1.45rem;
  white-space: nowrap; font-variant-numeric: tabular-nums; }
.place { overflow: hidden; } .place code { display: block; overflow: hidden;
  text-overflow: ellipsis; white-space: nowrap; }
.place small { color: var(--dim); display: block; overflow: hidden; text-overflow: ellipsis;
  white-space: nowrap; }
.inner { margin: .2rem 0 .8rem 2rem; overflow-x: auto; }
table { border-collapse: collapse; width: 100%; font-size: .85rem; }
th { color: var(--dim); font-weight: 500; text-align: left; }
th, td { padding: .2rem .6rem; border-bottom: 1px solid var(--edge); vertical-align: top; }
td.n, th.n { text-align: right; white-space: nowrap; font-variant-numeric: tabular-nums; }
.tree details, .tree .leaf { margin-left: 1.1rem; }
.tree > details, .tree > .leaf { margin-left: 0; }
.tree .item { display: grid; grid-template-columns: 1.1rem minmax(8rem, 1fr) 9rem 7rem;
  gap: .6rem; align-items: center; padding: .12rem 0; }
.tree .item > span:last-child { text-align: right; color: var(--dim); white-space: nowrap; }
svg { display: block; width: 100%; } svg text { fill: var(--dim); font-size: 11px; }
svg .grid { stroke: var(--edge); } svg .roof { fill: none; stroke: var(--dim); stroke-width: 1.5; }
svg circle { fill-opacity: .65; stroke: var(--card); } svg rect { stroke: var(--card);
  stroke-width: .3; }
svg rect:hover, svg circle:hover { fill-opacity: 1; stroke: var(--text); }
.wide { overflow-x: auto; } .wide svg { min-width: 60rem; }
@media (max-width: 44rem) { body { padding: .8rem; } section { padding: .8rem; }
  .row { grid-template-columns: 1rem 7rem repeat(4, minmax(0, 1fr)); gap: .3rem; }
  .row .place { grid-row: 2; grid-column: 2 / -1; } .row.head > div:nth-child(3) { display: none; }
  .inner { margin-left: 0; }
  .tree .item { grid-template-columns: 1rem minmax(3rem, 1fr) 6rem 6.5rem; gap: .3rem; } }
"""
