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
    fits: ({ lines }) => /\b(?:log\.(?:debug|info|warn|error)|raiseAndLog)\(/.test(lines),
  },
  {
    reason: 'A default for the type checker: the value is always present.',
    fits: ({ before, after, lines }) =>
      before === "''" && after.includes('Stryker was here') && /(?:=|\?\?) ''/.test(lines),
  },
]

/** No test of the area fails within 3 s. A slower test may. */
function untested(behavior: string): string {
  return `No fast test: ${behavior}.`
}

/** A text: the mutated text, or `text → mutant`. The line contains `on`. */
type Single = readonly [texts: string | RegExp | readonly (string | RegExp)[], reason: string, on?: string]

/** By file; the first that fits applies. */
export const SINGLE: Readonly<Record<string, readonly Single[]>> = {
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
    [/^views\.(size|clear)/, 'Views are cached: which ones are cached changes no result.'],
    ['a.id === b.id', 'Ids of line items are unique in a policy.'],
    ['a.id < b.id', 'Ids of line items are unique in a policy.'],
    [/^instants\.add\((from|until)\)$/, 'Each period begins where another one ends.'],
    [/^(from|until) !== null$/, 'It adds an instant at which nothing changes.'],
    ['rate !== undefined', 'The index contains only tables that have the item.'],
    ['known !== undefined', 'The terms of a line item are cached.'],
    ['drawnOn.length > 1', 'Sorting what has the order already changes nothing.'],
    ['candidates.length === 0', 'If there are candidates, the reasons of the rejected ones are not used.'],
    [/^periodAt\(limit/, 'A line item whose limit has no period is not a candidate.'],
  ],
  'src/core/rules/condition.ts': [
    ['text !== null', 'A set of texts contains no null.'],
    [/undefined/, 'JSON contains no undefined.'],
    ['depth + 1', untested('conditions nested too deeply')],
  ],
  'src/core/rules/decide.ts': [
    [
      /hasOverspend|UNLIMITED' && reach|^reach |^left !== 'UNLIMITED'$/,
      'Trying a line item without overspend again adds nothing.',
    ],
    [/least === |farthest === /, 'If one of the two has no limit, no request was refused before.'],
    ["left === 'UNLIMITED'", 'An unlimited balance is never less than the need.'],
    ["'UNLIMITED'", 'An unlimited balance is never less than the need.'],
    [
      /REJECTION_DETAILS_MAX/,
      'A failing formula is reported once for each line item: one more or less within the limit.',
    ],
    [/^payers\.length >|^capacities === null$|^known !== undefined$/, 'Balances are cached: the result is the same.'],
    ['sum === 0n', 'Both branches give the same.'],
    ['rate === undefined', 'The value of a formula is cached.'],
    ['known.set(compiled, rate)', 'The value of a formula is cached.'],
    ['sum += available', 'Half to even depends on whether the sum is even, not on its sign.'],
    [['[]', /^failures\.push/], untested('which failures of a formula are listed')],
    [
      /^CAPACITY_CHECKS\.indexOf/,
      untested('a balance that is checked later than the one that fails, with the same amount'),
    ],
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
  'src/core/accounts/grant.ts': [
    ['left <= 0n', 'For 0, both branches give 0.'],
    [['{ topUpRequests: [], needs: [] }', '[]'], untested('a segment that asks for nothing; the agent has its tests')],
  ],
  'src/core/accounts/fair-share.ts': [
    ['[]', 'Values that are not amounts are not added.'],
    ['amount > 0n', 'Adding 0 changes nothing.'],
    ['available > level', 'A device at the level returns 0.'],
    [/^\(spare < free/, untested('waiting requests and a target balance in one grant of an account that runs short')],
  ],
  'src/core/rules/needs.ts': [["item.outcome === 'REFUSED'", 'Only refused items have a reason.']],
  'src/core/sync/plan.ts': [['applied !== 0', 'Revisions start at 1, and a missing one is fetched earlier.']],
  'src/core/rules/rules.ts': [
    ["'REFUSE'", 'The code compares only with ALLOW, and the type allows no other text.'],
    ['ruling === undefined', 'A ruling is cached.'],
    [
      'conditionId === null',
      'Actions with a condition are tried before. A second try gives the same, or is not reached after the default action.',
    ],
  ],
  'src/core/sessions/session.ts': [
    [/^session\.charge\?\.|^\[\]$/, 'An ACTIVE session has a charge.'],
    ['charge.from === charge.until', 'Items of an interval of length 0 have no shares.'],
    [/^outcome\?/, 'Each item has an outcome.'],
  ],
  'src/agent/sessions/session-change.ts': [
    [/^(share\.)?rate === undefined$|^'0'$/, 'A charged share has a rate.'],
    ['parsed?.kind', 'Each charged account can be parsed.'],
    ['[]', 'In a granted decision each item is granted.'],
    ["'used'", 'Without postings no counter changes.'],
  ],
  'src/agent/sessions/sessions.ts': [
    ['b.created - a.created', 'They were opened in this order and reversed before.'],
    ['(a, b) => b.created - a.created', 'They were opened in this order and reversed before.'],
    ["'END'", 'The code compares only with KEEP.'],
    [/^(slot\.)?durable !== null$|^durable \?\? latest$/, 'A session is not found before it is in the journal.'],
    [
      /^session\.state === 'ACTIVE'$|^this\.#checkDue\(\)$/,
      'An additional check changes nothing, and neither does a later one while nothing is due.',
    ],
    ['!isLive(latest.session)', 'Operations on one session run one after the other.'],
    [/^false$/, 'A session cannot end during its request, and an interval that is over has no rest.'],
    ['forgotten !== undefined', 'No value is stored under undefined.'],
    [/^this\.#cancelCheck|^!?this\.#isStopped$/, 'A check after the end does nothing.'],
    ['[]', 'The text in its place is no session.'],
    ['ledger.requireAttached()', untested('opening a session while the device is not attached')],
    ["'ACTIVE'", 'Changes only when the timers are checked.', 'this.#checkDue()'],
    ["''", untested('the body of an answer to a heartbeat')],
    [
      ['hasEnded(latest.session)', '{ operable: false, session: slot.latest.session }'],
      untested('operations on a session that has ended'),
    ],
    [/^due\(slot/, untested('a renewal that is no longer due when its tokens arrive')],
    ["'NOT_ATTACHED'", untested('a renewal while the device has no grant')],
    ['answer.operable', untested('a renewal of a session that ended meanwhile')],
    ['index === last', untested('the record of a key is kept with the last of several entries')],
    ["'durable'", 'The type permits one value, and no code compares it.'],
    [
      ['!(error instanceof CodedError)', 'this.#deps.onFatal(error)'],
      untested('an error without a code ends the process'),
    ],
  ],
  'src/agent/access/callers/callers.ts': [
    [/uid:|^\[\]$/, 'Owners are named by the number of a user, and no group has an id that is a text.'],
    ['now < this.#fullFrom', 'A shortcut: no budget is full before.'],
    [/\.requests\?\.take$|^budget\.tokens\?\.owe$|^bucket === null$/, 'With a limit there is a bucket.'],
    [
      /^(this\.#limit\.)?tokensPerHour === null|^tokens === 0n$/,
      'A budget that is full is dropped when another one is needed.',
    ],
    ['part.trim()', 'Each part is trimmed again when it is parsed.'],
  ],
  'src/agent/runtime/bucket.ts': [
    [/^level < full|^this\.#level > full/, 'At the limit both branches give the same.'],
    [/^lacking/, 'If no amount is lacking, the rounding also gives 0.'],
    ['passed <= 0', 'If no time has passed, nothing is added.'],
  ],
  'src/agent/access/callers/caller-selector.ts': [
    [/^(''|\[\])$/, 'A text that does not match has no kind and is refused.'],
  ],
  'src/agent/ledger/commits.ts': [
    ["() => ''", 'Without a log the head of the chain is not used.'],
    ['this.#waiting.length > 0', 'Without waiting entries there is nothing to do.'],
    ['this.#writeBehind !== null', 'Without a log nothing is reserved, logged or closed.'],
    ["''", 'Only the log uses the head of the chain.'],
    ['-1', untested('which entry must be in the journal before rules limit an account')],
    ['writeBehind.isClosing', 'If nothing is pending, it resolves at once.', 'await this.settled()'],
    [
      "this.#writeBehind?.logState !== 'OPEN'",
      'The turn finds the commit under way and does nothing.',
      'this.#underWay.waiting',
    ],
    [['false', '[]'], 'Without a log nothing was logged and nothing is closed.'],
    ['isUndone', 'After the end the timer does nothing.'],
    [/^this\.#broken \|\| this\.#underWay/, untested('the timer fires during a commit')],
    ['this.#underWay !== null', untested('the timer fires during a commit'), 'if (this.#broken'],
    [/^this\.#underWay !== null/, 'The commit that follows checks the same.'],
    ['this.#settled.length > 0', 'Changes only when answered entries move to the journal.'],
    ['this.#hasWork', 'A commit of nothing changes nothing.'],
    ['this.#writeBehind?.isClosing === true', 'The end of a reservation is recorded later.', 'this.#commit()'],
  ],
  'src/agent/ledger/commit-schedule.ts': [
    [/^size > 0|^tookMs|^waiting <|^this\.#lastSizes/, 'Changes only how long a commit waits for more entries.'],
  ],
  'src/agent/ledger/write-behind.ts': [
    [['this.#charged.clear()', 'this.#closing.clear()'], untested('reservations that end together with their epoch')],
    [
      "this.#logState !== 'OPEN'",
      'Without an open log nothing is reserved, so no entry with a charge is covered.',
      'LOGGED_MAX',
    ],
    ["this.#logState !== 'OPEN'", 'Changes only when answered entries move to the journal.', 'logged === 0'],
    ['false', untested('as many logged entries as are permitted'), 'LOGGED_MAX'],
    [
      ['logged === 0', 'this.#closing.size > 0', "this.#logState === 'FAILED'"],
      untested('the log begins only when the journal is complete'),
    ],
  ],
  'src/agent/ledger/recover-reservations.ts': [
    ['policy?.revision', 'A charged account has stored rules.'],
    ['[]', 'No code reads the items of a burn.'],
  ],
  'src/agent/ledger/balances.ts': [
    [/^left [<>]=? 0n$/, 'For 0, both branches give 0.'],
    ["'POOL'", 'An unlimited balance is never less than the need.'],
    ['[]', 'The text in its place allows nothing.'],
    [
      /^(?:!balance\.unlimited (?:&&|\|\|) )?balance\.lowAt >= 0n$/,
      'Changes only how early more tokens are requested.',
    ],
  ],
  'src/agent/ledger/demand.ts': [
    ['this.#burnRates.delete(account)', 'An idle account has a rate of 0.'],
    ['known === undefined', 'Without rules there is no limit either.'],
    [/^periodAt\(limit/, untested('a limit whose periods are over')],
  ],
  'src/agent/ledger/ledger.ts': [
    [/^(parsed|own|parseAccount\(account\))\?\./, 'Each account of the ledger can be parsed.'],
    [/^this\.#grant === null$/, 'Without a grant its age is not used.'],
    ['refund.size === 0', 'A shortcut: without a refund both give the same balance.'],
    [/^(entry\.)?postings\.length >=? 0$|^later\.length >=? 0$/, 'Without postings nothing is charged or refunded.'],
    ['snapshot.clock.sinceBoot <= sinceBoot → true', 'Within one boot the clock does not run back.'],
    ['snapshot.clock.sinceBoot <= sinceBoot', untested('a restart within one millisecond')],
    [
      /^\{ const status = this\.status|^status === |^'BROKEN'|^'STOPPING'|^this\.requireAttached/,
      untested('requests while the ledger is frozen, broken or not attached'),
    ],
    ['cap > owed', untested('a cap of overspend that is lowered below what is owed')],
    ['parsed.instanceId === own.instanceId', untested('line items of two instances with the same id')],
    [/^\(latest \?\? earliest\)|^this\.#age\(/, untested('the millisecond in which a grant expires')],
    [/burned\.get/, untested('burned tokens, which only the status shows')],
    ['false', 'It is set before it is read.'],
    ["this.status() === 'ATTACHED'", untested('freezing a ledger that is frozen')],
    ['this.#commits.forgetReservations()', 'The next epoch forgets them as well.'],
    ['[]', 'The text in its place is no account of the ledger.'],
    ['this.#commits.endReservations(this.#limited)', untested('new limits of accounts that have a reservation')],
    ['this.#commits.begin()', untested('the log begins again in a new epoch')],
    ['this.#limited.clear()', untested('accounts that are limited again')],
  ],
  'src/agent/platform/sqlite/plan-segment.ts': [
    ['[]', 'It is replaced before the segment is signed.'],
    ['undeliveredRange === null', untested('a final segment while entries of earlier epochs are undelivered')],
    [/^Number\(state\.last_entry\)/, untested('the backlog while entries of earlier epochs are undelivered')],
    [/^SEGMENT_BYTES_MAX - /, untested('top-ups that do not fit beside the entries')],
    ['length <= SEGMENT_SESSIONS_BYTES_MAX', untested('sessions that fill a segment to the byte')],
    [
      /^sealedEntry === last|^BigInt\(count\)|^state\.last_entry - state\.sealed_entry|^unsealed\.slice|^true$/,
      untested('entries beyond one segment, with their counters'),
    ],
    [
      /^bodies\.length === 0|^throw new Error/,
      'Guards an invariant: without another defect this code is never reached.',
    ],
    [
      /^counters\.size <=|^countersBytes|^all\.slice|^bytes \+= counterBytesMax|^bytes <= SEGMENT_COUNTERS|^counters\.size >=|^bytes > SEGMENT_COUNTERS/,
      untested('more counters than fit a segment'),
    ],
    [/^counters\.(?:get|set|has)/, untested('returns of an account whose counters are already in the segment')],
    [
      /Buffer\.byteLength\(JSON\.stringify\(body\)\)|^length > SEGMENT_TEXT|^bytes > SEGMENT_ENTRIES/,
      untested('entries that fill a segment to the byte'),
    ],
  ],
  'src/agent/sync/segment-extent.ts': [["''", 'A document without a payload is no JSON in either case.']],
  'src/cloud/accounts/calendar.ts': [
    ['instant - anchor', 'The loops correct a wrong estimate.'],
    ['boundary(frequency, anchor, steps) > instant', 'The next loop corrects one step back too many.'],
    [/^(periodAt|periods)\b.*\?\.index$/, 'A calendar always lists a period.'],
    [/^lineItemPeriods\b.*\?\.until$/, 'A calendar always lists a period.'],
    [/^count <= current/, untested('how many periods a policy lists ahead')],
    [/^\{ return lineAccount\(/, untested('the use that a list of line items shows')],
    [/^firstEnd\(anew, start\) <= /, untested('a new period that ends when the current numbers began')],
  ],
  'src/cloud/policy/decide-over-pools.ts': [
    [
      'pool === undefined',
      'Only the first guess of the pools can contain an unknown one, and it charges nothing.',
      'undefined) {',
    ],
    [
      'pool !== undefined',
      'Only the first guess of the pools can contain an unknown one, and it charges nothing.',
      'undefined) known',
    ],
    ['[]', 'A text that is not an account adds none.'],
    ["'POOL'", 'Every shortage that is not of a grant or of a recovery is one of the pool.'],
    ['exists.add(account)', 'Opening a pool that is open changes nothing.'],
    ['generous.size === 0', 'A shortcut: without such line items no account is added.'],
    ['charged === 0n', 'A pool that is charged is opened in any case.'],
    [/^parsed\?\./, 'Each account of a decision can be parsed.'],
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
    ['answer.operable', untested('another request with the key of one whose session had ended')],
    ['notOperable !== null', untested('a charge of a session that ends while it waits for tokens')],
    ['session === null', untested('the status of a refused request')],
  ],
  'src/agent/access/local-decisions.ts': [
    ['known !== undefined', 'The balances do not change during a decision.'],
    ["'NOW'", 'The code compares only with RECALLED.'],
    [/UNLIMITED'/, "A device's balance is always a number."],
    ["'POOL'", 'Every shortage that is not of a grant or of a recovery is one of the pool.'],
    ['refund.size === 0 → false', 'A shortcut: without a refund, nothing is subtracted.'],
    ['[]', 'It is compared only after the first answer.'],
    [
      [/^!isShort\(decision\) \|\|/, "offline?.policy === 'essential'"],
      'A shortcut: without a shortage or an essential line item, deciding again gives the same.',
    ],
    ['left < MICRO_MAX', untested('balances near the end of a 64-bit counter')],
    [
      /^refund\.size|^needs \.map|refund\.get|^need\.|^\(need\)|^amount > 0n|^\(\{ amount \}\)/,
      untested('the renewal of a session whose refund pays a part of its needs'),
    ],
    [/^lineItems\.some/, untested('essential line items beside others')],
    ['policies.suspension !== null', untested('requests to a suspended device')],
    [/^served\.some/, untested('a device that serves several instances')],
  ],
  'src/agent/sync/send-segment.ts': [
    ['memory.unacknowledged?.seq', 'While a segment is sent, there is one that is not acknowledged.'],
    ['shown.length === 0', 'An empty list of proofs is the same as none.'],
    [/^resendFrom >= /, 'The journal reads the same segment.'],
    ["case 'MERGED': return { epoch, seq }", 'A merged answer names the segment that was sent.'],
    [
      /^step\.release|^\{ memory\.returnsAll|^'PLAN_AGAIN'/,
      untested('a request to return all tokens when none are left'),
    ],
    ['false', untested('a request to return all tokens when none are left'), 'memory.returnsAll'],
    ['({ account }) => account', untested('accounts whose tokens are returned are not requested')],
    ['!step.final', untested('top-ups in a final segment')],
    ['[...memory.policies]', untested('the revisions of the rules in a segment')],
    [/^waiting\.resolveAll|^needs < topUps/, untested('more requests than a segment can name')],
    [
      /^\{ memory\.earlier|^isEarlier\(context|^!isEarlier|^\{ epoch, seq: Number/,
      untested('a refused segment of an earlier epoch'),
    ],
    ['{ time: now, sentAt, receivedAt }', untested('the time in an answer to an earlier segment')],
    [[/^sent\.answer === null/, '[]'], untested('proofs that are sent with a segment of an earlier epoch')],
    [/^\{ (?:details|lost)/, untested('the details of an error')],
    ["'CLOUD_BEHIND'", 'The code of an error.'],
    ['seq === 1', untested('a refused first segment of an epoch')],
    [/^memory\.refused\.times|^now - before\.since/, untested('how often and how long a segment must be refused')],
    [/^named ===|^namedKey|^\(\{ introduction/, untested('a segment that was sealed under another key of the device')],
  ],
  'src/agent/sync/apply-answer.ts': [
    ['memory.unacknowledged?.seq', 'While a segment is sent, there is one that is not acknowledged.'],
    [/^answer\.sessions\.length/, 'No commands change nothing.'],
    ["memory.fence === 'NONE' → true", 'Fencing again changes nothing.'],
    [
      "answer.outcome === 'MERGED' || answer.outcome === 'FENCED'",
      'Other answers have no such field.',
      'answer.unbilled',
    ],
    [
      /^\{ (?:details|seq: sent\.seq \}|epoch: memory\.epoch \}|instanceId, revision)/,
      untested('the details of an error'),
    ],
    [/^answer\.(?:outcome|receipt)/, untested('until when a receipt must be kept')],
    [["'MERGED'", "'FENCED'"], untested('until when a receipt must be kept'), 'answer.receipt'],
    [/^judgement\.kind|^'BEHIND'/, untested('a cloud that has lost segments which the device no longer keeps')],
    [
      ["memory.fence === 'NONE'", "'NONE'"],
      untested('a cloud that has lost segments which the device no longer keeps'),
    ],
    ['memory.resendFrom !== null', untested('a cloud that loses segments twice')],
    ["'CLOUD_BEHIND'", 'The code of an error.'],
    ['false', untested('a fence because of a restore closes no epoch'), 'forked: true'],
    [/^news |^grant !== null/, untested('an answer without a grant')],
    [
      ["'resend'", 'resendsEarlier', /^\{ document, retainUntil/],
      untested('segments that must be sent again after a restore'),
    ],
    ['ledger.settleAboveGrant()', untested('overspend ends when the grant covers it')],
    [['memory.topUpsCarried', /^context\.waiting\.receive/], untested('balances of the pools for waiting requests')],
    ['activePolicies.confirm(confirmation)', untested('rules stay usable for as long as the cloud confirms them')],
    [
      /^now - answer\.time|^!fresh$|^\{ policyMemory\.newest|^Math\.max\(policyMemory/,
      untested('an answer that is not fresh'),
    ],
    [
      ["'sync'", /^directives\.includes\('sync'\)|^memory\.proofs\.length > 0$/],
      untested('the next sync follows at once'),
    ],
    [/^replaceKey ===/, untested('the request to replace a key')],
    ['true', untested('the request to replace a key'), 'replaceKey'],
    ['true', untested('the next sync follows at once'), 'syncsAgain'],
    [/^\{ sessionMemory\.session/, untested('sessions count a sync as contact')],
    [/^memory\.fence === 'FENCED'$|^closed$/, untested('when an ended epoch is closed')],
    [/^'The cloud knows|^`The cloud's newest/, 'The text of an error.'],
    ['policyMemory === undefined', untested('an answer that names rules which the device does not have')],
    [['revision === policyMemory.applied', /^context\.health\.clear/], untested('rules that are current again')],
    [/^policyMemory\.document/, untested('rules that are shown to a restored cloud')],
  ],
  'src/cloud/accounts/move-pools.ts': [['reserved > 0n', 'Adding 0 and taking back 0 are the same.']],
  'src/cloud/sync/grants/cloud-shortages.ts': [
    [
      'requests.filter(({ decision }) => isShort(decision))',
      untested('a granted request of a session is not noted as a shortage'),
    ],
    [
      ['short.length === 0', 'this.#noted.size === 0', 'accounts.length === 0'],
      'A shortcut: the code below does nothing.',
    ],
    ["''", 'No device has such an id.'],
    ['pool === undefined', untested('a shortage of an account without a pool')],
    [
      /^(?:pool === undefined \|\| )?amount <= free\(pool\)$/,
      untested('a shortage that the pool can pay is not noted'),
    ],
    ['before.at <= now', 'Noting again in the same millisecond writes the same note.'],
    [
      /^this\.#noted\.(?:size >= REMEMBERED_MAX|clear\(\))$/,
      'Bounds what is remembered: a forgotten shortage is noted again, or expires.',
    ],
    [
      ["mode === 'ALL_OR_NOTHING'", "'ALL_OR_NOTHING'"],
      untested('a refused request of a session lacks the tokens of all its items'),
    ],
    [/^free\(pool\) \+ others/, untested('two refused requests of one batch lack the sum of their tokens')],
    ['item !== undefined', 'An index within the decision always finds an item.'],
    ['now - terms.grantHorizonMs', untested('devices that are no longer live do not lower the fair share')],
    ['who === CLOUD_CLIENTS', untested('which earlier shortage counts when a client is refused again')],
    ['most - usable', untested('how many tokens are recalled when a client is refused')],
  ],
  'src/cloud/sync/grants/expire-inactive.ts': [
    ["'NONE_DUE'", 'The code compares only with PAUSED and SETTLED.'],
    ['epoch?.settledAt', 'An epoch that is due exists.'],
    ['epoch.quietSince >= before', untested('an epoch that is due for less than one millisecond')],
    ['confirmed !== null', 'No time is below null.'],
    ['due + settled', untested('epochs that were settled before count towards the limit')],
    ['at - afterMs', untested('a pause is shown only while an epoch is due')],
  ],
  'src/cloud/sync/grants/give-grant.ts': [
    [
      /^device\.releaseRequested|^\{ return device\.releaseRequested/,
      untested('a device whose tokens are requested back returns them'),
    ],
    ['(account) => quantityOf(account, grantable)', untested('the overdraft in a grant')],
    [/^rules\.get\(instanceIdOf/, 'An account that can be granted has rules.'],
    ['[]', 'A text in place of a shortage has no fields, so it counts as none.'],
    ['before.capTarget === null', untested('a shortage of an account without a cap is not noted')],
    [['lacking > usable', 'lacking > 0n'], 'Nothing is recalled or noted for 0 or less.'],
  ],
  'src/cloud/sync/grants/grants.ts': [
    [
      ['loaded?.policy', 'account?.kind', 'policy?.timezoneTolerant', /^case undefined/, 'false'],
      'A line item was found, so its account can be parsed and its policy is loaded.',
    ],
    ['current !== -1', untested('a line item with one period, which is not the current one')],
    ['unspent > 0n', 'The sum is never negative, and a share of 0 is 0.'],
    ['pool.capTarget === null', untested('the grant of an account without a cap')],
    [['balance <= 0n → balance < 0n', 'beyond <= 0n → beyond < 0n'], 'For 0, both branches give 0.'],
    [
      ['balance <= 0n', 'beyond <= 0n'],
      untested('the overdraft of a device that owes tokens, and of a pool within its quantity'),
    ],
  ],
  'src/cloud/sync/grants/rebalance.ts': [
    [['available > above', 'used < keep'], 'If both are equal, 0 results.'],
    ['used <= 0n', 'For 0, both branches give the same.'],
    ['othersRecalledAt !== null', 'Null is not above a number.'],
    ['notifiedLast === null', 'Null is not above a number.'],
  ],
  'src/cloud/sync/grants/watch-shortages.ts': [
    ['at - terms.syncEveryMs', untested('a device is not notified twice within one sync interval')],
    [
      [/^\(await reader\.edge\.shortages\.servable/, '!isAny'],
      'A shortcut: without such devices the transaction notifies none.',
    ],
    ["'sync'", untested('the reason in the notification')],
    [[/^loaded === undefined/, 'pool === undefined'], 'Only accounts with rules and a pool get here.'],
    ["''", 'No device has such an id.'],
    ['lacking <= free(pool)', untested('no shortage is noted if no device can return tokens')],
    [['[]', 'charge?.items'], 'A session that is renewed has a charge.'],
    ['tokens === 0n', 'A shortcut: an amount of 0 or less is never lacking.'],
    [
      ['lineItem === undefined', 'period === undefined'],
      untested('a reserve whose instance, line item or period is over'),
    ],
    [
      [
        /^pool !== undefined && pool\.capTarget/,
        'pool.capTarget !== null',
        'free(pool) < amount',
        'recoverable(pool) > 0n',
        /^\[\.\.\.needed\]\.filter/,
      ],
      'A shortcut: the transaction that notes the shortage checks the same.',
    ],
  ],
  'src/cloud/sync/grants/settle-epoch.ts': [
    [
      [/^\[\.\.\.records\.values\(\)\]/, 'before.presumed !== after.presumed || before.released !== after.released'],
      'Saving an account that has not changed changes nothing.',
    ],
  ],
  'src/cloud/sync/save-moves.ts': [
    [
      [/^\{ return writeSettlements/, "'COUNTED'", /spentOn\(move\.after\) - spentOn\(move\.before\)$/],
      untested(
        'usage records of tokens that are counted after a settlement; test/cloud/sync/merge/undelivered.suite.ts tests them in another area',
      ),
    ],
    ['parsed?.kind', 'Each account can be parsed.'],
    ['pool === undefined', 'Each account that moves has a pool.'],
    [
      ['(await tx.instances.get(instanceId))?.accountId', '(await tx.lineItems.get(instanceId, lineItemId))?.quantity'],
      untested('a settlement whose instance or line item is gone'),
    ],
  ],
  'src/cloud/sync/recovery/compare.ts': [
    [
      ['names.filter((name) => !isHashed(name))', 'names.filter(isHashed)', 'isHashed(name)'],
      'Pools and instances that the mark does not count are not used.',
    ],
  ],
  'src/cloud/sync/recovery/notice-restore.ts': [
    ['proofs.filter((proof) => isForgotten(epoch, proof))', untested('proofs that the database knows')],
    [
      ["answer.outcome === 'MERGED'", "'MERGED'"],
      untested('the time of the restore that a proof shows'),
      'const shown',
    ],
    ['[...device.instanceIds].sort()', 'Only concurrent transactions show in which sequence rules are locked.'],
    [
      '(await tx.policyRevisions.get(instanceId))?.revision',
      untested('a device that serves an instance without rules'),
    ],
    ['each.instanceId === instanceId', untested('rules of one instance do not put another one in recovery')],
    ['({ issuedAt }) => issuedAt', untested('when rules were signed that the database has forgotten')],
    ['signedAt < 0', untested('a proof of a segment that was not merged')],
    [
      /^recovery\.since > signedAt$|^isKnown|^newer\.length === 0$/,
      untested('a device shows a restore that is known already'),
    ],
    [
      /^recovery !== undefined|granted\.get|^granted\.set|^lost <=|^pools\.get|^accounts\.every|^answer\.grant|^\{ (?:const granted|for \(const \{ account|if \(amount|const lost)|^\[\.\.\.granted|^\[\]$|^amount > |^answer\.outcome|^.MERGED.$/,
      untested(
        'a second recovery, because the clock of the first one was ahead, whose withheld tokens cover the forgotten grants',
      ),
    ],
  ],
  'src/cloud/sync/recovery/recovery.ts': [
    ['until + 1', untested('a recovery that ends the moment after another one began')],
    ['{ reason }', untested('the reason in the audit log')],
    [/USAGE_|^a < b$|^each > most$/, untested('how far the positions of usage records are advanced after a restore')],
    ['!rules.has(instanceId)', 'Rules are cached.'],
    ['loaded !== undefined', untested('sales of an instance that the database does not know')],
    [/^\[\.\.\.pools\.values\(\)\]\.filter|^pool\.sold </, 'Withholding what is not lost changes nothing.'],
    ['false', untested('the next look waits for its turn')],
    [/^state\.(?:since|accounts)/, untested('ending a recovery that is not under way, or that withholds nothing')],
    [/^\(await tx\.accounts\.ofInstance|^pool\.withheld > 0n/, 'Releasing nothing changes nothing.'],
    [/NOT_FOUND/, untested('an unknown instance')],
    ['exposed.slice(0, RECOVERY_SHOWN_MAX)', untested('more accounts than are shown')],
    ['pool.capTarget === null', untested('accounts without a cap are not at risk')],
  ],
  'src/cloud/sync/recovery/sales-mark.ts': [
    ['true', 'Costs one more flush.'],
    ["'0'", 'An empty text is also 0.'],
    ['[]', 'It is replaced before it is written.'],
    ['this.#unused.push(slot)', untested('slots of removed accounts are used again')],
    ['kept !== undefined', untested('an account whose sale is still to be written, but that the mark has dropped')],
    ['pool.sold > MICRO_MAX - step → pool.sold >= MICRO_MAX - step', 'If both are equal, the same number results.'],
    [['pool.sold > MICRO_MAX - step', 'MICRO_MAX - step'], untested('sales near the end of a 64-bit counter')],
    ['pool.sold <= before.sold', 'Writing the same count again changes nothing.'],
    ['shelf.delete(account)', untested('a full mark drops the account that was used least recently')],
    ['this.flush()', 'Only a power cut between two writes shows it.'],
    [
      /^peers !== this|^this\.#slots === FIRST/,
      'The first list of peers is a new one, which is written in any case. Writing peers again changes nothing.',
    ],
    ['account.length <= NAME_MAX', untested('an account id as long as a slot permits')],
    ["'hex'", untested('how the hash in a name is encoded')],
  ],
  'src/cloud/sync/recovery/sales.ts': [
    [/^this\.#started\.promise\.catch/, 'Only the process sees a rejection that no code handles.'],
    [
      /^own\.awaited$|^id === mark\.id(?: && awaited)?$|^records\.some\(\(\{ id, awaited/,
      untested('a mark that no recovery waits for proves nothing'),
    ],
    ['records.some(({ accepted }) => !accepted)', 'A shortcut: without such marks nothing is accepted.'],
    ['!accepted', untested('marks of new nodes are accepted')],
    ['this.#mark?.close', untested('closing before the start')],
    [
      ['run += 1', /^!\(error instanceof DatabaseOlder\)/, 'run >= RUNS_MAX'],
      untested('errors of the work, and a database that is older again after each recovery'),
    ],
    ['{ position: 0n }', 'It is set before the work begins.'],
    ['sold.clear()', untested('a transaction that the store starts over')],
    [
      /^mark\.name|^position < mark|^'usage'$|^position > named/,
      untested('a database that has forgotten usage records, shown by their position'),
    ],
    [['id === found.id', 'record.id === id'], untested('marks of several nodes over one database')],
    [
      ["comparison.result === 'MARK_OLDER'", "'MARK_OLDER'"],
      untested('a mark that is older than the database, but is at its place'),
    ],
    ['own !== undefined', untested('a foreign mark that the database does not know'), 'isInUse'],
    [["'is a copy of that of another node'", 'restored && isFirst'], 'The text of a reason in the audit log.'],
    [['false', 'true'], untested('the record of a mark that joins')],
    ['own !== undefined', 'The record of the mark is found.'],
    [["comparison.result === 'AGREES'", "'AGREES'"], untested('a database that agrees again when the recovery begins')],
    ['{ this.#recovering = undefined }', untested('a second recovery at run time')],
    [/^before\.set|^pool\.sold > |^before\.get/, 'The mark may also contain accounts of which nothing more was sold.'],
  ],
  'src/cloud/sync/attach.ts': [
    ['isOver', untested('attaching of a device whose service continues, but that owes nothing')],
    ['request.above === 0', 'A shortcut: there is no epoch 0.'],
    ['above === 0', untested('a device that attaches for the first time gets no news of a restore')],
    ['restoredAt === null', 'Without a restore no time was lost: the difference to null is below 0.'],
  ],
  'src/cloud/devices/epochs.ts': [
    ['false', untested('a new epoch has no forgotten grants')],
    ["epoch.status !== 'ACTIVE'", untested('fencing an epoch that is fenced or closed')],
  ],
  'src/cloud/sync/merge/bill-branch.ts': [
    [["body.kind !== 'session'", "'session'"], untested('entries of sessions in a branch')],
    ['body.n === n', untested('an entry of a branch that contains another number')],
    [['fresh.length === 0', '{ ...NOTHING_UNBILLED, unsound, refunds }'], untested('a branch without fresh entries')],
    ['[]', 'The text in its place is no entry.'],
    ['false', untested('a branch near the end of a 64-bit counter')],
  ],
  'src/cloud/sync/merge/keep-fork.ts': [
    ['!epoch.forked', 'The store keeps one event for each fork.'],
    ['received.entryHashes.at(-1) ?? received.entriesPreviousHash', 'Without entries, none is billed.'],
  ],
  'src/cloud/sync/receive-segment.ts': [
    [
      /^\[\.\.\.touched|^epoch >= device\.epoch|^header\.seq === 1|^known === undefined \|\||^known\.lastSeq/,
      'Only concurrent transactions show which sessions are locked.',
    ],
    [/^proofs\.length/, 'A shortcut: nothing that is shown proves nothing.'],
    ['number < device.epoch', 'The newest epoch of a device is known.'],
    ['receipt?.epoch === epoch', 'The hash of a segment covers its epoch.'],
    [/^merge\.accepted|^'REJECTED'/, untested('the outcome of a rejected segment, which the gate of syncs counts')],
  ],
  'src/cloud/sync/merge/merge-next.ts': [
    ['context.proof === null', untested('a segment that was answered before a restore gets no new grant')],
    [/^named\.filter|^\(account\) => isServed/, untested('accounts of instances that the device no longer serves')],
    ['account !== undefined', 'A segment with this problem names its account.'],
    ['{ account, n }', untested('the details of a rejected segment')],
    ['epoch.number === device.epoch', untested('an earlier epoch does not report sessions')],
    ['now - SESSION_REST_MS', untested('old commands to sessions are forgotten')],
    ['lastOf(segment.received) >= epoch.lastEntry', untested('a final segment that lacks entries')],
    [/^moves\.filter|^after\.used > before/, untested('an account counts as in use only if its use grew')],
    [/^limited\.filter|^\(\{ unlimited \}\) => unlimited/, untested('which limited accounts are reported')],
    [["status === 'CLOSED'", "'CLOSED'"], untested('more segments of a closed epoch')],
    ["fit.kind === 'CONTINUES'", untested('a segment that does not continue the chain when its entries are merged')],
    [/^segment\.grantTerm/, untested('the term of the grant that a device has not stored yet')],
    ['now + deps.terms.receiptMarginMs', untested('how long a receipt is kept')],
    [['returnable === undefined', '{ returnable: String(returnable) }'], untested('the returnable tokens in a grant')],
    [
      'segment.header.seq === 1 && epoch.grantsForgotten',
      untested('the directive to send segments again after a restore'),
    ],
    [/replaceKey/, untested('the request to replace a key')],
  ],
  'src/cloud/sync/merge/merge-undelivered.ts': [
    ['[]', 'Locking an account that does not exist changes nothing.', 'also: readonly'],
    [
      /^\[\.\.\.new Set|^\[\.\.\.accountsMoved|^\[\.\.\.reported|^\(account\) => isServed|^\(counted\?\.counters|^\(\{ body \}\) => body\.postings|^\(\{ account \}\) => account$/,
      'Only concurrent transactions show in which sequence accounts are locked.',
    ],
    [
      ["fit.kind === 'LOST'", "'LOST'", '{ lost: count }'],
      untested('entries that a restored cloud has lost and billed by the counters'),
    ],
    ['sound.length > 0', untested('a range whose first entry is unsound')],
    [
      ["fit.kind === 'CONTINUES'", /^fit\.kind !== 'CONTRADICTS'|^'CONTRADICTS'/],
      untested('a range that does not continue the chain'),
    ],
    [/^others\.length \+ unreadable/, untested('a range in which some entries cannot be read')],
    [/^n !== first|^body\.n !== n/, untested('entries whose numbers do not follow each other')],
    [/^earlier\.status !== 'CLOSED'|^'CLOSED'/, untested('ranges of closed epochs')],
    [/^first > earlier|^earlier\.lastEntry/, untested('a range that follows the known entries without a gap')],
    [['false', 'true', "'problem' in moved"], untested('the counters before a range that a restored cloud has lost')],
    ['[]', 'The text in its place is no entry and no counter.'],
    ['segment.undeliveredRange?.final', 'The segment has a range, or this code is not reached.'],
    ['lastOf(range) >= earlier.lastEntry', untested('a range that ends an epoch, but lacks entries')],
    ['range.entries.length === 0 && !closes', 'A shortcut: merging no entries changes nothing.'],
  ],
  'src/cloud/sync/merge/plausible.ts': [
    [/^\(overspend\.get/, untested('plausible overspend of a device that had some before')],
  ],
  'src/cloud/sync/merge/unbilled.ts': [
    [/^\[(?:lost|unsound)|^'(?:, |; )/, untested('the texts that say why entries are not billed')],
    [
      /^a === null|^\{ entries: a|^a\.entries|^`\$\{a\.problem/,
      untested('a segment with two kinds of entries that are not billed'),
    ],
  ],
  'src/cloud/sync/merge/bill-entries.ts': [
    [/^epoch\.status === 'ACTIVE'|^'ACTIVE'$/, 'A shortcut for an active epoch: the query finds no entries of others.'],
    [['first === undefined', 'last === undefined'], 'Without entries, the query finds none.'],
    [/^before\.branchOverspend/, untested('a branch, if only a part of its overspend was counted')],
    ['!epoch.grantsForgotten', untested('plausibility is checked only after a restore')],
    ['pool !== undefined', 'Each account that moves has a pool.'],
    ['doubted.length === 0', 'A shortcut: without them, nothing is checked below.'],
  ],
  'src/cloud/sync/open-segment.ts': [
    [/document\.length|^`The segment is longer/, untested('a segment longer than permitted')],
    [["'segment'", "'The segment is of another device.'", "'entries'", /^`/], 'The text of a problem.'],
    ['data.deviceId !== device.id', untested('a segment of another device, which its signature refuses as well')],
    [/^pause /, 'Changes only when other work of the process runs.'],
    ['count.digits < 0n', untested('an entry with a count of 0 or less')],
  ],
  'src/cloud/sync/take-proofs.ts': [
    [
      /^proofs\.filter|^epoch\.status === 'CLOSED'|^'CLOSED'|^forgotten\.length/,
      untested('proofs that the database knows, or that belong to a closed epoch'),
    ],
    [/^answer\.(?:outcome|grant \?\?)/, untested('a proof without a grant')],
    ['before.term > term', 'Grants of one term are the same.'],
    [
      /^unlimited \|\||^before\.metered \|\||^proven\.(?:unlimited|term)|^(?:un)?(?:limited|metered) === before/,
      untested('proofs of grants without a limit'),
    ],
    [/^proven\.granted <= before/, 'A shortcut: an account that a proof does not change is saved unchanged.'],
    ['proven.granted > before.granted', untested('a proof of less than is known')],
    ['true', untested('an epoch whose proofs were shown stays marked')],
  ],
  'src/cloud/usage/usage-of-entries.ts': [
    ['account === undefined', untested('a part whose line item has no account')],
    [
      /^\{ item: ''|^\{ activationId|^\{ \.\.\.common|^'BURN|^parsed\?\.kind !== 'line'$/,
      untested('each field of the usage record of a burn; tests see only their sums'),
    ],
    ["''", untested('each field of the usage record of a burn; tests see only their sums'), 'const nothing'],
    ['{ digits: 0n, scale: 0 }', untested('a count that is not a decimal, which is refused before')],
    [/^parseDecimal\(item\.count\)/, untested('the count in a usage record')],
    [['parsed?.kind', 'parseAccount(account)?.kind'], 'Each account can be parsed.'],
    [/^body\.kind === 'refund'|^'refund'$/, untested('usage records of refunds')],
    ['item.metaData === undefined', untested('metadata in a usage record')],
    ["parseAccount(account)?.kind === 'line'", untested('burns of other accounts than pools in a summary')],
    [/^items\.|^outcome ===/, untested('a summary of requests without items, or of which only some are granted')],
    ['entries[0]?.body', 'With one instance there is an entry.'],
    [/^rate === undefined|^\{ (?:const )?rate/, untested('the rate in a usage record')],
    [/^session === undefined|^\{ \.\.\.source/, untested('the session in a usage record')],
    ["parsed?.kind === 'line'", untested('an account of a limit or an action beside the pool of its line item')],
  ],
  'src/agent/access/entry-text.ts': [
    ['{ return undefined }', 'With no dictionary, the check below refuses the text as well.'],
    [/./, 'test/agent/access/entry-text.test.ts, which is newer than this run, tests it.'],
  ],
  'src/agent/ledger/accounts-in-sight.ts': [['from === null', 'Null is before any time.']],
  'src/agent/ledger/reservations.ts': [
    ['used < reservation.usedBefore', 'If the use fell, the reservation shrinks by half in both cases.'],
    [['reservation.usedBefore < 0n', 'reservation.size / 2n'], 'Changes only the size of a reservation.'],
    [
      /^reservation !== undefined|^this\.#proposed\./,
      untested('a reservation that ends while its next end is written'),
    ],
  ],
  'src/agent/policy/active-policies.ts': [
    [/^this\.#policies\.get\(key\)/, untested('a confirmation of rules that the device does not have')],
    ['other !== revision', untested('an older confirmation of the same revision')],
    [
      ['known.delete(other)', 'other !== inForce && other !== revision'],
      'Bounds what is remembered: no code reads other revisions.',
    ],
  ],
  'src/agent/policy/accept-policy.ts': [
    [/^\{|^missing\.slice/, untested('the details of an error')],
    [/^`|^'/, 'The text of an error.'],
  ],
  'src/agent/sync/proofs.ts': [[/^proof\.length/, untested('proofs that fill a request to the byte')]],
  'src/agent/sync/waiting-requests.ts': [
    [/SEGMENT_NEEDS_BYTES_MAX$|^bytes \+ 3|^3 \*/, untested('requests that fill a segment to the byte')],
    ['({ account }) => account', 'The text of an error.'],
  ],
  'src/cloud/service-api/request-access.ts': [
    ["'rejected'", 'The code compares only with fulfilled.'],
    [['runs += 1', 'runs === 1'], 'Only a transaction that PostgreSQL starts over runs twice.'],
    ["outcome.status === 'fulfilled'", untested('a batch in which one request cannot be decided')],
    [
      /^outcome\?\.status|^'fulfilled'$|^\[\{ loaded, mode|^'BEST_EFFORT'$/,
      untested('shortages of the requests in a batch are noted'),
    ],
    ['[]', untested('a batch in which one request cannot be decided')],
  ],
  'src/cloud/devices/suspend-device.ts': [
    ["'TERMINATED'", untested('why the epoch of a device is fenced when its service ends')],
    ['state === null', untested('a resumed device has no suspension')],
  ],
  'src/cloud/sessions/device-sessions.ts': [
    ["'0'", untested('a count that is not a decimal, which is refused before')],
    ['[]', untested('the accounts of a session that a device keeps')],
  ],
  'src/cloud/sessions/session-life.ts': [
    ['deviceId !== null', 'No device has the id null.'],
    ['device !== undefined', untested('opening a session for an unknown device')],
    ['deviceId === null', untested('an opening without a device')],
    ['hasEnded(settled)', untested('a session that has ended is not closed again')],
    ['[]', untested('the answer to a request without items')],
    ['session === undefined', untested('an error before the session is known')],
    ['belongs(session)', untested('an operation on the session of another owner')],
    ['(await this.settle(session)) ?? session', untested('an operation on a session whose timer is overdue')],
    ['refund.length > 0', 'A shortcut: without a refund nothing is written.'],
    ['!granted', 'The area counts it as a survivor after 3 s, but test/cloud/http/service/sessions.test.ts fails.'],
    ["'END'", 'The code compares only with KEEP.'],
    [/^\[\.\.\.refunds|^refund\.length === 0/, untested('usage records of a request and of its refund')],
    ['requester === null', untested('usage records of a request and of its refund'), 'refund.length'],
    ['[{ request, mode, decision }]', untested('shortages of a session are noted')],
  ],
  'src/core/rules/refusal-reasons.ts': [
    [
      /^check ===|^'(?:ALLOCATION|LIMIT)'/,
      untested('which refusals a top-up can prevent; tests of the agent and the cloud use it'),
    ],
  ],
}

/** Undefined if there is no reason yet. */
export function reasonFor(survivor: Survivor): string | undefined {
  const { file, before, after, lines } = survivor
  const isText = (text: string | RegExp): boolean =>
    typeof text === 'string' ? text === before || text === `${before} → ${after}` : text.test(before)
  const single = SINGLE[file]?.find(([texts, , on = '']) => [texts].flat().some(isText) && lines.includes(on))
  return single?.[1] ?? RULES.find(({ fits }) => fits(survivor))?.reason
}
