/** Why surviving mutants stay: by kinds, and then by file and text. */
import type { Survivor } from './report.ts'

interface Rule {
  readonly reason: string
  readonly fits: (survivor: Survivor) => boolean
}

/** `a > b` against `a >= b`. */
function isOnlyStrictness({ before, after }: Survivor): boolean {
  const plain = (text: string): string => text.replaceAll(/([<>])=/g, '$1')
  return before !== after && plain(before) === plain(after)
}

/** `a > b ? a : b`, in any order. */
function isExtremum({ before, lines }: Survivor): boolean {
  const [left = '', right = ''] = before.split(/ [<>]=? /)
  const branches = new RegExp(`\\? (?:${literal(left)} : ${literal(right)}|${literal(right)} : ${literal(left)})`)
  return branches.test(lines.slice(lines.indexOf(before) + before.length))
}

/** `if (a > b) b = a`. */
function isRaise({ before, lines }: Survivor): boolean {
  const [left = '', right = ''] = before.split(/ [<>]=? /)
  return lines.includes(`${right} = ${left}`) || lines.includes(`${left} = ${right}`)
}

/** `a < 0n ? -a : a`. */
function isMagnitude({ before, lines }: Survivor): boolean {
  const name = before.split(/ [<>]=? /)[0] ?? ''
  return lines.includes(`? -${name} : ${name}`) || lines.includes(`? '-' : ''`)
}

function literal(text: string): string {
  return text.replaceAll(/[$()*+.?[\\\]^{|}]/g, '\\$&')
}

const RULES: readonly Rule[] = [
  {
    reason: 'The greater or the lesser of two numbers: where they are equal, both are the same number.',
    fits: (survivor) => isOnlyStrictness(survivor) && (isExtremum(survivor) || isRaise(survivor)),
  },
  {
    reason: 'Zero has no sign.',
    fits: (survivor) => isOnlyStrictness(survivor) && isMagnitude(survivor),
  },
  {
    reason: 'The guard of an invariant: without another defect nothing gets there.',
    fits: ({ lines }) => /throw new Error\(.invariant/.test(lines),
  },
  {
    reason: 'A default that the type checker asks for: the value is always there.',
    fits: ({ before, after, lines }) =>
      before === "''" && after.includes('Stryker was here') && /(?:=|\?\?) ''/.test(lines),
  },
]

/** By file: the text that is changed, and why the change makes no difference. Without a text: every one in the file. */
const SINGLE: Readonly<Record<string, readonly (readonly [before: string | RegExp, reason: string])[]>> = {}

/** Undefined for one that has no reason yet. */
export function reasonFor(survivor: Survivor): string | undefined {
  const single = SINGLE[survivor.file]?.find(([before]) =>
    typeof before === 'string' ? before === survivor.before : before.test(survivor.before),
  )
  return single?.[1] ?? RULES.find(({ fits }) => fits(survivor))?.reason
}
