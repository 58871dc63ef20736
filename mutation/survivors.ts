/** Reasons for surviving mutants: general rules, and single mutants by file and text. */
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
    reason: 'Maximum or minimum of two numbers: if they are equal, both are the same number.',
    fits: (survivor) => isOnlyStrictness(survivor) && (isExtremum(survivor) || isRaise(survivor)),
  },
  {
    reason: 'If both are equal, the same number results.',
    fits: (survivor) =>
      isOnlyStrictness(survivor) &&
      /ledger\/(?:balances|ledger|reservations)\.ts$/.test(survivor.file) &&
      /^(?:allowance|above|granted|cap|used|back|amount|end|steady|bounded|wanted|reservation\.end) /.test(
        survivor.before,
      ),
  },
  {
    reason: 'If both are equal, the same number results.',
    fits: (survivor) => isOnlyStrictness(survivor) && survivor.file === 'src/cloud/accounts/pool.ts',
  },
  {
    reason: 'Zero has no sign.',
    fits: (survivor) => isOnlyStrictness(survivor) && isMagnitude(survivor),
  },
  {
    reason: 'Guards an invariant: without another defect this code is never reached.',
    fits: ({ lines }) => /throw new Error\(.invariant/.test(lines),
  },
  {
    reason: 'The text or the fields of a log line.',
    fits: ({ lines }) => /\blog\.(?:debug|info|warn|error)\(/.test(lines),
  },
  {
    reason: 'A default for the type checker: the value is always present.',
    fits: ({ before, after, lines }) =>
      before === "''" && after.includes('Stryker was here') && /(?:=|\?\?) ''/.test(lines),
  },
]

/** By file: the mutated text, and why the change makes no difference. */
const SINGLE: Readonly<Record<string, readonly (readonly [before: string | RegExp, reason: string])[]>> = {
  'src/core/accounts/account.ts': [
    [/^units/, 'A shortcut: the code below decides the same.'],
    ['{ return undefined }', 'The comparison at the end also refuses such a text.'],
    ["kind === 'limit'", 'The comparison at the end also refuses such a text.'],
    ['parsed !== undefined', 'A text without parts is not created from parts either.'],
  ],
  'src/core/pricing/amount.ts': [
    [/^BigInt/, 'Dividing by 1 or -1 is the same as multiplying by it.'],
    [/^'0'$/, 'An exponent without text is also 0.'],
    ['scale === 0', 'A shortcut: the general calculation gives the same number.'],
    ['scale >= 0', 'With a scale of 0 both branches give the same.'],
    ['den < 0n', 'The denominator is never 0 here.'],
    ['num >= 0n', 'For 0, both branches give 0.'],
  ],
  'src/core/rules/compile.ts': [
    [/^(spans|views)\.(size|clear)/, 'Views are cached: which ones are cached changes no result.'],
    ['a.id === b.id', 'Ids of line items are unique in a policy.'],
    ['a.id < b.id', 'Ids of line items are unique in a policy.'],
    [/^instants\.add\((from|until)\)$/, 'Each period begins where another one ends.'],
    [/^(from|until) !== null$/, 'It adds an instant at which nothing changes.'],
    ['rate !== undefined', 'The index contains only tables that have the item.'],
    ['candidates.length === 0', 'If there are candidates, the reasons of the rejected ones are not used.'],
    [/^periodAt\(limit/, 'A line item whose limit has no period is not a candidate.'],
  ],
  'src/core/rules/condition.ts': [
    ['text !== null', 'A set of texts contains no null.'],
    [/undefined/, 'JSON contains no undefined.'],
  ],
  'src/core/rules/decide.ts': [
    [
      /hasOverspend|UNLIMITED' (&&|\|\|) reach|^reach |^left !== 'UNLIMITED'$/,
      'Trying a line item without overspend again adds nothing.',
    ],
    [/least === |farthest === /, 'If one of the two has no limit, no request was refused before.'],
    ["left === 'UNLIMITED'", 'An unlimited balance is never less than the need.'],
    ["'UNLIMITED'", 'An unlimited balance is never less than the need.'],
    [
      /REJECTION_DETAILS_MAX/,
      'A failing formula is reported once for each line item: one more or less within the limit.',
    ],
    ['rate === undefined', 'The value of a formula is cached.'],
    ['known.set(compiled, rate)', 'The value of a formula is cached.'],
    ['sum += available', 'Half to even depends on whether the sum is even, not on its sign.'],
  ],
  'src/core/pricing/formula-rate.ts': [
    ['x.num < 0n', 'Zero has no sign.'],
    [/^num (<|>=) 0n$/, 'Zero has no sign.'],
    ['num / den', 'A fraction or a number that is too large is refused in both cases.'],
    ["'FORMULA_OVERFLOWS'", 'A number that is too large is also refused as a rate.'],
    [/typeof value === 'string'|^'string'$/, 'A failure is returned unchanged in both cases.'],
    [/x\.num \* y\.den [<>]= y\.num \* x\.den/, 'Which of two equal numbers is used makes no difference.'],
    [
      /^!?isTooLarge|^(den|num) [<>]/,
      'Parts are reduced and bounded slightly earlier or later: the value is the same.',
    ],
    ['times < 0n', 'For 0, both branches give the same.'],
    ['places < 0n', 'For 0, both branches give the same.'],
    ['whole >= -max', 'Below this bound, the power or the rounding is refused because of its size.'],
  ],
  'src/core/pricing/formula.ts': [
    ["''", 'This text is not a sign, number or name.'],
    ["'END'", 'The following code uses the text of the token, which implies its kind.'],
    ['error instanceof Refusal', 'The parser throws no other error.'],
    [/token\.kind (===|!==) '/, 'The following code uses the text of the token, which implies its kind.'],
  ],
  'src/core/accounts/in-words.ts': [
    [/^\[?'/, 'A module constant, which is evaluated before any test runs.'],
    ['bytes < 1', 'One byte is in the first unit in both cases.'],
  ],
  'src/core/sync/receive.ts': [
    ['missing <= 0n', 'If no amount is missing, nothing is added.'],
    ['spent > granted', 'If the values are equal, the result is the same.'],
    [/^a\.(granted|unlimited|overspend)/, 'It changes only together with another counter that is also compared.'],
    [
      'firstEntry > lastEntry + 1',
      'A range that begins after the end cannot continue the chain either: the hashes differ.',
    ],
    [/CONTINUES/, 'Only a segment that continues the chain has fresh entries.'],
  ],
  'src/core/accounts/grant.ts': [['left <= 0n', 'For 0, both branches give 0.']],
  'src/core/accounts/fair-share.ts': [
    ['[]', 'Values that are not amounts are not added.'],
    ['amount > 0n', 'Adding 0 changes nothing.'],
    ['available > level', 'A device at the level returns 0.'],
  ],
  'src/core/rules/needs.ts': [["item.outcome === 'REFUSED'", 'Only refused items have a reason.']],
  'src/core/sync/plan.ts': [
    ['applied !== 0', 'Revisions start at 1, and a missing one is fetched earlier.'],
    [/SETTLED|^key !== undefined$/, 'A completed key needs no step in either case.'],
  ],
  'src/core/rules/rules.ts': [
    ["'REFUSE'", 'The code compares only with ALLOW, and the type allows no other text.'],
    ['ruling === undefined', 'A ruling is cached.'],
  ],
  'src/core/sessions/session.ts': [
    [/^session\.charge\?\.|^\[\]$/, 'An ACTIVE session has a charge.'],
    ['charge.from === charge.until', 'Items of an interval of length 0 have no shares.'],
    [/^parsed\?|^outcome\?/, 'Each account of a decision can be parsed, and each item has an outcome.'],
  ],
  'src/agent/sessions/session-change.ts': [
    [/^(share\.)?rate === undefined$|^'0'$/, 'A charged share has a rate.'],
    ['parsed?.kind', 'Each charged account can be parsed.'],
    [/^outcome\?\.outcome|^\[\]$/, 'In a granted decision each item is granted.'],
    ["'used'", 'Without postings no counter changes.'],
  ],
  'src/agent/sessions/sessions.ts': [
    ['b.created - a.created', 'They were opened in this order and reversed before.'],
    ['(a, b) => b.created - a.created', 'They were opened in this order and reversed before.'],
    [/every\(\(\{ outcome \}\) => outcome === 'GRANTED'\)/, 'All items are granted, or no item is.'],
    ["'END'", 'The code compares only with KEEP.'],
    [/^(slot\.)?durable !== null$|^durable \?\? latest$/, 'A session is not found before it is in the journal.'],
    [
      /^session\.state === 'ACTIVE'$|^this\.#look\(\)$|^left <= 0$/,
      'An additional check changes nothing, and neither does a later one while nothing is due.',
    ],
    ['!isLive(latest.session)', 'Operations on one session run one after the other.'],
    ['{ operable: false, session: latest.session }', 'Operations on one session run one after the other.'],
    [/^false$/, 'A session cannot end during its request, and an interval that is over has no rest.'],
    ['!answer.operable', 'A claim cannot fail after its response.'],
    ['forgotten !== undefined', 'No value is stored under undefined.'],
    [/^this\.#cancelLook|^!?this\.#isStopped$/, 'A check after the end does nothing.'],
  ],
  'src/agent/access/callers/callers.ts': [
    [/uid:|^\[\]$/, 'Owners are named by the number of a user, and no group has an id that is a text.'],
    ['now < this.#fullFrom', 'A shortcut: no budget is full before.'],
    [/\.requests\?\.take$|^budget\.tokens\?\.owe$|^bucket === null$/, 'With a limit there is a bucket.'],
    [
      /^(this\.#limit\.)?tokensPerHour === null|^tokens === 0n$/,
      'A budget that is full is dropped when another one is needed.',
    ],
    [/^level < full|^this\.#level > full/, 'At the limit both branches give the same.'],
    [/^lacking/, 'If no amount is lacking, the rounding also gives 0.'],
    ['passed <= 0', 'If no time has passed, nothing is added.'],
    ['limits.length === 0', 'A shortcut: without limits, no limit matches the caller.'],
    ['oldest !== undefined', 'If there are too many, there is an oldest one.'],
    ['owner === null', 'No value is stored under null.'],
    ['part.trim()', 'Each part is trimmed again when it is parsed.'],
  ],
  'src/agent/access/callers/caller-selector.ts': [
    [/^(''|\[\])$/, 'A text that does not match has no kind and is refused.'],
  ],
  'src/agent/ledger/commits.ts': [
    ["() => ''", 'Without a log the head of the chain is not used.'],
    [/^this\.#timerAt <=? at$/, 'A timer for the same moment may be set again.'],
    ['this.#waiting.length > 0', 'Without waiting entries there is nothing to do.'],
    [/^(this\.#deps\.)?reserve !== null$/, 'Without a log nothing is reserved, logged or closed.'],
    ["''", 'Only the log uses the head of the chain.'],
  ],
  'src/agent/ledger/recover-reservations.ts': [
    [/^parseAccount/, 'Each reserved account can be parsed.'],
    ['policy?.revision', 'A charged account has stored rules.'],
    ['[]', 'No code reads the items of a burn.'],
  ],
  'src/agent/ledger/balances.ts': [
    [/^left [<>]=? 0n$/, 'For 0, both branches give 0.'],
    ["'POOL'", 'An unlimited balance is never less than the need.'],
  ],
  'src/agent/ledger/ledger.ts': [
    [/^(parsed|own|parseAccount\(account\))\?\./, 'Each account of the ledger can be parsed.'],
    [/^this\.#grant === null$/, 'Without a grant its age is not used.'],
    ['refund.size === 0', 'A shortcut: without a refund both give the same balance.'],
    ['this.#burnRates.delete(account)', 'An idle account has a rate of 0.'],
    [/^(entry\.)?postings\.length >=? 0$|^later\.length >=? 0$/, 'Without postings nothing is charged or refunded.'],
  ],
  'src/agent/platform/sqlite/plan-segment.ts': [['[]', 'It is replaced before the segment is signed.']],
  'src/agent/sync/segment-extent.ts': [["''", 'A document without a payload is no JSON in either case.']],
  'src/cloud/accounts/calendar.ts': [
    ['boundary(frequency, anchor, steps) > instant', 'A step back too many is made good by the next loop.'],
    [/^(periodAt|periods)\b.*\?\.index$/, 'A calendar always lists a period.'],
  ],
  'src/cloud/accounts/decide-over-pools.ts': [
    ['pool === undefined', 'Only the guess of the pools meets an unknown one, and charges nothing.'],
    ['[]', 'A text that is not an account adds none.'],
    ["'POOL'", 'Every shortage that is not of a grant or of a recovery is one of the pool.'],
    ['lineItem === undefined', 'The accounts of a decision belong to line items of its rules.'],
    ['exists.add(account)', 'Opening a pool that is open changes nothing.'],
    ['generous.size === 0', 'A shortcut: without such line items no account is added.'],
    ['charged === 0n', 'A pool that is charged is opened in any case.'],
    [/^parse(d|Account\(account\))\?\./, 'Each account of a decision can be parsed.'],
  ],
  'src/cloud/accounts/pool.ts': [
    ['cap !== null', 'Null is not above a number.'],
    ['parsed?.lineItemId', 'Each account can be parsed.'],
  ],
  'src/agent/runtime/clock.ts': [
    ['both.earliest <= both.latest', 'An interval of one instant rounds to the same ends.'],
    [
      'before.latest === null',
      'The minimum of a number and null is 0, or the earlier end is above it: the received interval applies.',
    ],
  ],
  'src/agent/access/idempotency-cache.ts': [['open?.reject', 'A claim that fails is still open.']],
  'src/cloud/usage/usage-of-request.ts': [
    ['[]', 'The line item that granted is in the rules.'],
    ['pool === undefined', 'No total is stored under undefined.'],
    ['pool !== undefined', 'Each total is that of a pool.'],
  ],
  'src/agent/access/access.ts': [
    ["'BEST_EFFORT'", 'The code compares only with ALL_OR_NOTHING.'],
    ["''", 'An automatic charge answers no caller.'],
    ['claim === null', 'Without a claim no answer is recorded in either case.'],
    ['quota === undefined', 'Without a quota the sum is not used.'],
    [/^typeof given === 'object'|^given !== null$|^isObject$/, 'Only objects are read, so no other value is known.'],
  ],
  'src/agent/access/local-decisions.ts': [
    ['known !== undefined', 'The balances do not change during a decision.'],
    ["'NOW'", 'The code compares only with RECALLED.'],
    [/UNLIMITED'/, "A device's balance is always a number."],
    ["'POOL'", 'Every shortage that is not of a grant or of a recovery is one of the pool.'],
    ['refund.size === 0', 'A shortcut: without a refund, nothing is subtracted.'],
  ],
  'src/agent/sync/send-segment.ts': [
    ['memory.unacknowledged?.seq', 'While a segment is sent, there is one that is not acknowledged.'],
    ['shown.length === 0', 'An empty list of proofs is the same as none.'],
    [/^resendFrom >= /, 'The journal reads the same segment.'],
    ["case 'MERGED': return { epoch, seq }", 'A merged answer names the segment that was sent.'],
    [/^answer\.sessions\.length/, 'No commands change nothing.'],
    ["memory.fence === 'NONE'", 'Fencing again changes nothing.'],
  ],
}

/** Undefined if there is no reason yet. */
export function reasonFor(survivor: Survivor): string | undefined {
  const single = SINGLE[survivor.file]?.find(([before]) =>
    typeof before === 'string' ? before === survivor.before : before.test(survivor.before),
  )
  return single?.[1] ?? RULES.find(({ fits }) => fits(survivor))?.reason
}
