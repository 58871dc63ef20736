/** Why surviving mutants stay: rules for kinds of them, then single ones. */
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

function literal(text: string): string {
  return text.replaceAll(/[$()*+.?[\\\]^{|}]/g, '\\$&')
}

const RULES: readonly Rule[] = [
  {
    reason: 'The greater or the lesser of two numbers: where they are equal, it is the same number.',
    fits: (survivor) => isOnlyStrictness(survivor) && isExtremum(survivor),
  },
]

/** Undefined for one that nobody has given a reason for. */
export function reasonFor(survivor: Survivor): string | undefined {
  return RULES.find(({ fits }) => fits(survivor))?.reason
}
