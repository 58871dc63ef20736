/** Style and script of the status page. Both are inline; the browser may run no other. */
import { BASE_STYLE } from '../../../html/base-style.ts'

export const STYLE = `${BASE_STYLE}header,main,footer{max-width:70rem;margin:0 auto;padding:min(1rem,4.5vw)}
h1{font-size:1rem;margin:0;color:var(--soft);font-weight:600;overflow-wrap:anywhere}
h2{font-size:1.05rem;margin:0 0 .6rem}
.health{overflow-wrap:anywhere;font-size:1.35rem;line-height:1.3;font-weight:600;margin:.5rem 0 0;padding-left:.8rem;border-left:.4rem solid}
.ok{color:var(--ok)}.attention{color:var(--attention)}.refusing{color:var(--refusing)}
#live{margin:.3rem 0 0}h2.next,.next~p{margin:.8rem 0 .2rem}.steps{margin:0;padding-left:1.4rem;overflow-wrap:anywhere}.steps code{font-size:.9em}
main{display:grid;gap:1rem;padding-top:0}
th[scope=col]{overflow-wrap:normal}th[scope=row]{min-width:9rem}td:not(.n){min-width:6rem}
svg{display:block;width:11rem;height:2rem;border-bottom:1px solid var(--soft)}
.area{fill:var(--area)}.curve{fill:none;stroke:var(--bar);stroke-width:1.5px;stroke-linejoin:round;vector-effect:non-scaling-stroke}
.problem{margin:0 0 .8rem;padding-left:min(.8rem,4.5vw);border-left:.3rem solid var(--attention);overflow-wrap:anywhere}
.problem:last-child{margin:0}.problem p{margin:.15rem 0}
@media(max-width:40rem){
thead{position:absolute;width:1px;height:1px;overflow:hidden;clip-path:inset(50%)}
table,tbody,tr,th[scope=row],td{display:block;width:100%}
tr{border-bottom:1px solid var(--line);padding:.5rem 0}tr:last-child{border:0}
th[scope=row],td,td.n{border:0;padding:.15rem 0;min-width:0;text-align:left;white-space:normal}
th[scope=row]{color:var(--ink)}
td[data-label]{display:grid;grid-template-columns:7rem minmax(0,1fr);column-gap:.6rem}
td[data-label]::before{content:attr(data-label);color:var(--soft)}
td[data-label]>*{grid-column:2}
td[data-label=Note]:empty{display:none}
svg{width:100%;max-width:16rem}
dl{grid-template-columns:6.5rem minmax(0,1fr)}
}
section{container-type:inline-size}
@container(max-width:15rem){dl,td[data-label]{grid-template-columns:minmax(0,1fr)}td[data-label]>*{grid-column:1}dd+dt{margin-top:.4rem}}
@media(min-width:56rem){main{grid-template-columns:1fr 1fr}.wide{grid-column:1/-1}th[scope=col],td[data-label^=Last]{white-space:nowrap}}
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
    say('Refreshed every 2 seconds.','soft')
  }catch{say('The agent does not respond. Everything on this page is old.','refusing')}
  setTimeout(refresh,every)
}
function say(text,style){
  if(note.textContent===text)return
  note.textContent=text
  note.className=style
}
setTimeout(refresh,every)
`
