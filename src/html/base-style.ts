export const BASE_STYLE = `
:root{color-scheme:light dark;--ground:#f6f7f8;--card:#fff;--ink:#16191d;--soft:#545c66;--line:#d9dde2;--ok:#0b6b3a;--attention:#8a5200;--refusing:#b3151f;--bar:#1f5fae;--area:#d3e0f0}
@media(prefers-color-scheme:dark){:root{--ground:#12151a;--card:#1b2027;--ink:#e9edf2;--soft:#a8b2bd;--line:#323a45;--ok:#63d297;--attention:#f2b75c;--refusing:#ff8a8a;--bar:#7ab2f5;--area:#2b3d55}}
*{box-sizing:border-box}
body{margin:0;background:var(--ground);color:var(--ink);font:1rem/1.45 system-ui,sans-serif}
section{background:var(--card);border:1px solid var(--line);border-radius:.6rem;padding:min(1rem,4.5vw);min-width:0}
dl{display:grid;gap:.35rem 1rem;margin:0;grid-template-columns:minmax(7rem,max-content) 1fr}
dt{color:var(--soft)}dd{margin:0;overflow-wrap:anywhere}
section p{margin:0}
.scroll{overflow-x:auto}
.scroll:focus-visible{outline:3px solid var(--bar);outline-offset:2px}
table{border-collapse:collapse;width:100%}
th,td{text-align:left;padding:.35rem .8rem .35rem 0;border-bottom:1px solid var(--line);vertical-align:top;overflow-wrap:anywhere}
th{color:var(--soft);font-weight:600}
.n{text-align:right;font-variant-numeric:tabular-nums;white-space:nowrap}
.soft,footer{color:var(--soft)}code{font-size:.8em;overflow-wrap:anywhere}a{color:var(--bar)}
a,code,th,td>div{unicode-bidi:plaintext}
`
