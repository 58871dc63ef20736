/** Style and script of the status page. Both are inline; the browser may run no other. */

export const STYLE = `
:root{color-scheme:light dark;--ground:#f6f7f8;--card:#fff;--ink:#16191d;--soft:#545c66;--line:#d9dde2;--ok:#0b6b3a;--attention:#8a5200;--refusing:#b3151f;--bar:#1f5fae;--area:#d3e0f0}
@media(prefers-color-scheme:dark){:root{--ground:#12151a;--card:#1b2027;--ink:#e9edf2;--soft:#a8b2bd;--line:#323a45;--ok:#63d297;--attention:#f2b75c;--refusing:#ff8a8a;--bar:#7ab2f5;--area:#2b3d55}}
*{box-sizing:border-box}
body{margin:0;background:var(--ground);color:var(--ink);font:16px/1.45 system-ui,sans-serif}
header,main,footer{max-width:70rem;margin:0 auto;padding:1rem}
h1{font-size:1rem;margin:0;color:var(--soft);font-weight:600}
h2{font-size:1.05rem;margin:0 0 .6rem}
.health{font-size:1.35rem;line-height:1.3;font-weight:600;margin:.5rem 0 0;padding-left:.8rem;border-left:.4rem solid}
.ok{color:var(--ok)}.attention{color:var(--attention)}.refusing{color:var(--refusing)}
main{display:grid;gap:1rem;padding-top:0}
section{background:var(--card);border:1px solid var(--line);border-radius:.6rem;padding:1rem;min-width:0}
dl{display:grid;gap:.35rem 1rem;margin:0;grid-template-columns:minmax(7rem,max-content) 1fr}
dt{color:var(--soft)}dd{margin:0;overflow-wrap:anywhere}
section p{margin:0}
.scroll{overflow-x:auto}
.scroll:focus-visible{outline:3px solid var(--bar);outline-offset:2px}
table{border-collapse:collapse;width:100%}
th,td{text-align:left;padding:.35rem .8rem .35rem 0;border-bottom:1px solid var(--line);vertical-align:top;overflow-wrap:anywhere}
th{color:var(--soft);font-weight:600}
th[scope=col]{overflow-wrap:normal}th[scope=row]{min-width:9rem}td:not(.n){min-width:6rem}
.n{text-align:right;font-variant-numeric:tabular-nums;white-space:nowrap}
svg{display:block;width:11rem;height:2rem;border-bottom:1px solid var(--soft)}
.area{fill:var(--area)}.curve{fill:none;stroke:var(--bar);stroke-width:1.5px;stroke-linejoin:round;vector-effect:non-scaling-stroke}
.problem{margin:0 0 .8rem;padding-left:.8rem;border-left:.3rem solid var(--attention);overflow-wrap:anywhere}
.problem:last-child{margin:0}.problem p{margin:.15rem 0}
.soft,footer{color:var(--soft)}code{font-size:.8em;overflow-wrap:anywhere}a{color:var(--bar)}
@media(min-width:56rem){main{grid-template-columns:1fr 1fr}.wide{grid-column:1/-1}}
`

/** Reloads the page and replaces only the parts that changed, to keep focus and scroll position. */
export const SCRIPT = `
const every=2000
const note=document.getElementById('live')
async function refresh(){
  try{
    const answer=await fetch('/',{cache:'no-store'})
    if(!answer.ok)throw new Error(String(answer.status))
    const next=new DOMParser().parseFromString(await answer.text(),'text/html')
    for(const part of document.querySelectorAll('[data-part]')){
      const other=next.querySelector('[data-part="'+part.dataset.part+'"]')
      if(!other)continue
      if(part.className!==other.className)part.className=other.className
      if(part.innerHTML!==other.innerHTML)part.replaceChildren(...other.childNodes)
    }
    say('Refreshed every 2 seconds.')
  }catch{say('The agent does not respond. The data below is old.')}
  setTimeout(refresh,every)
}
function say(text){if(note.textContent!==text)note.textContent=text}
setTimeout(refresh,every)
`
