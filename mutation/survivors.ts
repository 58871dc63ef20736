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

/** By file: the text that is changed, and why the change makes no difference. */
const SINGLE: Readonly<Record<string, readonly (readonly [before: string | RegExp, reason: string])[]>> = {
  'src/core/accounts/account.ts': [
    [/^units/, 'A shortcut: what it decides is measured below with the same result.'],
    ['{ return undefined }', 'The comparison at the end refuses such a text too.'],
    ["kind === 'limit'", 'The comparison at the end refuses such a text too.'],
    ['parsed !== undefined', 'A text of which there are no parts is not made from them either.'],
  ],
  'src/core/pricing/amount.ts': [
    [/^BigInt/, 'A number divided by 1 or -1 is the number times it.'],
    [/^'0'$/, 'An exponent without text is 0 too.'],
    ['scale === 0', 'A shortcut: the general way gives the same number.'],
    ['scale >= 0', 'With a scale of 0 both ways are the same.'],
    ['den < 0n', 'No denominator is 0 here.'],
    ['num >= 0n', 'Of 0, both ways give 0.'],
  ],
  'src/core/rules/compile.ts': [
    [/^spans\.(size|clear)/, 'Views are kept to save time: which ones are kept changes no answer.'],
    ['a.id === b.id', 'No two line items of a policy have one id.'],
    ['a.id < b.id', 'No two line items of a policy have one id.'],
    [/^instants\.add\((from|until)\)$/, 'Where one period begins another one has ended.'],
    [/^(from|until) !== null$/, 'One more instant at which nothing changes.'],
    ['rate !== undefined', 'The index holds only tables that have the item.'],
    ['candidates.length === 0', 'Where there are candidates, nobody reads why others are none.'],
    [/^periodAt\(limit/, 'A line item whose limit has no period is no candidate.'],
  ],
  'src/core/rules/condition.ts': [
    ['text !== null', 'No set of texts holds a null.'],
    [/undefined/, 'JSON holds no undefined.'],
  ],
  'src/core/rules/decide.ts': [
    [
      /hasOverspend|UNLIMITED' (&&|\|\|) reach|^reach |^left !== 'UNLIMITED'$/,
      'A line item without overspend adds nothing when it is tried again.',
    ],
    [/least === |farthest === /, 'Where one of both has no limit, nothing has been refused before.'],
    ["left === 'UNLIMITED'", 'What has no limit is never less than what is needed.'],
    ["'UNLIMITED'", 'What has no limit is never less than what is needed.'],
    [
      /REJECTION_DETAILS_MAX/,
      'A formula that fails is named as often as there are line items: one more or less within the limit.',
    ],
    ['rate === undefined', 'The value of a formula is kept to save time.'],
    ['known.set(compiled, rate)', 'The value of a formula is kept to save time.'],
    ['sum += available', 'Half to even depends on whether the sum is even, not on its sign.'],
  ],
  'src/core/pricing/formula-rate.ts': [
    ['x.num < 0n', 'Zero has no sign.'],
    [/^num (<|>=) 0n$/, 'Zero has no sign.'],
    ['num / den', 'What is not whole, or is too large, is refused either way.'],
    ["'FORMULA_OVERFLOWS'", 'What is too large is refused as a rate as well.'],
    [/typeof value === 'string'|^'string'$/, 'A failure passes through unchanged either way.'],
    [/x\.num \* y\.den [<>]= y\.num \* x\.den/, 'Of two equal numbers it does not matter which one is taken.'],
    [
      /^!?isTooLarge|^(den|num) [<>]/,
      'Parts are reduced, and bounded, a little earlier or later: the value is the same.',
    ],
    ['times < 0n', 'Of 0, both ways are the same.'],
    ['places < 0n', 'Of 0, both ways are the same.'],
    ['whole >= -max', 'Below it the power or the rounding is refused for its size.'],
  ],
  'src/core/pricing/formula.ts': [
    ["''", 'No sign, number or name has this text.'],
    ["'END'", 'What follows looks at the text of the token, which tells its kind.'],
    ['error instanceof Refusal', 'The parser throws nothing else.'],
    [/token\.kind (===|!==) '/, 'What follows looks at the text of the token, which tells its kind.'],
  ],
  'src/core/accounts/in-words.ts': [
    [/^\[?'/, 'A constant of the module, which is made before any test runs.'],
    ['bytes < 1', 'One byte is in the first unit either way.'],
  ],
  'src/core/sync/receive.ts': [
    ['missing <= 0n', 'Where nothing is missing, nothing is added.'],
    ['spent > granted', 'Where it is the same, it stays the same.'],
    [/^a\.(granted|unlimited|overspend)/, 'It moves only with a counter that is compared as well.'],
    ['firstEntry > lastEntry + 1', 'What begins behind the end cannot continue it either: the hashes differ.'],
    [/CONTINUES/, 'Only what continues the chain has fresh entries.'],
  ],
  'src/core/accounts/grant.ts': [['left <= 0n', 'Of 0, both ways give 0.']],
  'src/core/accounts/fair-share.ts': [
    ['[]', 'What is no amount is not added.'],
    ['amount > 0n', 'Adding 0 changes nothing.'],
    ['available > level', 'A device at the level returns 0.'],
  ],
  'src/core/rules/needs.ts': [["item.outcome === 'REFUSED'", 'Only items that were refused have a reason.']],
  'src/core/sync/plan.ts': [
    ['applied !== 0', 'Revisions count from 1, and one that is missing is fetched before.'],
    [/SETTLED|^key !== undefined$/, 'A key that is settled needs no step in either way.'],
  ],
  'src/core/rules/rules.ts': [
    ["'REFUSE'", 'Only ALLOW is compared with, and the type allows no other text.'],
    ['ruling === undefined', 'A ruling is kept to save time.'],
  ],
  'src/core/sessions/session.ts': [
    [/^session\.charge\?\.|^\[\]$/, 'A session that is ACTIVE has a charge.'],
    ['charge.from === charge.until', 'Items of an interval without length have no parts.'],
    [/^parsed\?|^outcome\?/, 'Each account of a decision can be read, and each item has an outcome.'],
  ],
  'src/agent/sessions/session-entries.ts': [
    [/^part\.rate === undefined$|^'0'$/, 'A part that was charged names its rate.'],
    ['parsed?.kind', 'Each account that was charged can be read.'],
  ],
  'src/agent/sessions/sessions.ts': [
    ['b.created - a.created', 'They were opened in this order, and are turned round before.'],
    ['(a, b) => b.created - a.created', 'They were opened in this order, and are turned round before.'],
    [/every\(\(\{ outcome \}\) => outcome === 'GRANTED'\)/, 'All items are granted, or none of them.'],
    ["'END'", 'Only KEEP is compared with.'],
    ["'used'", 'Without postings neither counter moves.'],
    [/durable !== null|durable \?\? latest/, 'A session that is not in the journal yet is not found.'],
    [
      /^session\.state === 'ACTIVE'$|^this\.#look\(\)$|^left <= 0$/,
      'A look too many changes nothing, nor one that comes later while nothing is due.',
    ],
    ['!isLive(latest.session)', 'Operations on one session wait for each other.'],
    ['{ operable: false, session: latest.session }', 'Operations on one session wait for each other.'],
    [/^false$/, 'Nothing ends a session during its request, and nothing is left of an interval that is over.'],
    ['!answer.operable', 'A claim that is answered cannot fail any more.'],
    [/^latest\.session\.charge === null/, 'Without a charge there is nothing to give back.'],
    ['forgotten !== undefined', 'Nothing is kept under undefined.'],
    [/^outcome\?\.outcome|^\[\]$/, 'Of a granted decision each item is granted.'],
    ['rate === undefined', 'Each part of a granted item has a rate.'],
    ['made.session.charge === null', 'Without a charge nobody asks in which epoch it was.'],
    [/^this\.#cancelLook|^!?this\.#isStopped$/, 'A look after the end does nothing.'],
  ],
  'src/agent/access/callers/bucket.ts': [
    [/^level < full|^this\.#level > full/, 'At the brim both ways are the same.'],
    [/^lacking/, 'Where nothing is lacking, the rounding gives 0 too.'],
    ['passed <= 0', 'Where no time has passed, nothing is added.'],
  ],
  'src/agent/access/callers/callers.ts': [
    ['limits.length === 0', 'A shortcut: of no limits none names the caller.'],
    ['oldest !== undefined', 'Where there are too many, there is an oldest one.'],
    ['owner === null', 'Nothing is kept under null.'],
    ['part.trim()', 'Each part is trimmed again where it is read.'],
  ],
  'src/agent/access/callers/caller-selector.ts': [
    [/^(''|\[\])$/, 'A text that does not match has no kind, and is refused.'],
  ],
  'src/agent/runtime/clock.ts': [
    ['both.earliest <= both.latest', 'An interval of one instant is rounded to the same ends.'],
    [
      'before.latest === null',
      'The lesser of a number and null is 0 or the earlier end is above it: the told interval counts.',
    ],
  ],
  'src/agent/access/idempotency-cache.ts': [['open?.reject', 'A claim that fails is open.']],
}

/** Undefined for one that has no reason yet. */
export function reasonFor(survivor: Survivor): string | undefined {
  const single = SINGLE[survivor.file]?.find(([before]) =>
    typeof before === 'string' ? before === survivor.before : before.test(survivor.before),
  )
  return single?.[1] ?? RULES.find(({ fits }) => fits(survivor))?.reason
}
