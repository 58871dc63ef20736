import fc from '../../support/fast-check.ts'
import { expect, it } from 'vitest'
import {
  type AccessEntry,
  accessEntryText,
  decisionInputsText,
  parseDecisionInputs,
} from '../../../src/agent/access/entry-text.ts'
import { actionAccount, limitAccount, lineAccount } from '../../../src/core/accounts/account.ts'
import { type Decimal, formatDecimal } from '../../../src/core/pricing/amount.ts'
import type { Variables } from '../../../src/core/pricing/formula-rate.ts'
import type { AvailableBalance, ChargeShare, ItemOutcome, RequestedItem } from '../../../src/core/rules/decision.ts'
import type { RefusalReason } from '../../../src/core/rules/refusal-reasons.ts'
import { type EntryBodyWire, entryBody } from '../../../src/protocol/edge/sync.ts'
import { INSTANCE } from '../sync/fake-cloud.ts'

const uuid = fc.uuid()
const text = fc.string({ unit: 'binary', maxLength: 40 }).filter((one) => one.isWellFormed() && !one.includes('\u0000'))
const amount = fc.bigInt({ min: 0n, max: 2n ** 62n })
const decimal: fc.Arbitrary<Decimal> = fc.record({ digits: fc.bigInt({ min: 0n, max: 10n ** 12n }), scale: fc.nat(9) })
const part: fc.Arbitrary<ChargeShare> = fc.record({
  lineItemId: text,
  rate: decimal,
  actionId: fc.option(text),
  charged: amount,
})
const outcome: fc.Arbitrary<ItemOutcome> = fc.oneof(
  fc.record({ outcome: fc.constant('GRANTED' as const), shares: fc.array(part, { maxLength: 3 }), total: amount }),
  fc.record({
    outcome: fc.constant('REFUSED' as const),
    reason: fc.constantFrom<RefusalReason>('ITEM_NOT_RATED', 'GRANT_EXHAUSTED'),
    rejectionDetails: fc.constant([]),
  }),
  fc.constant({ outcome: 'NOT_CHARGED' as const }),
)
const variables = fc.array(fc.tuple(fc.stringMatching(/^[a-z_][a-z0-9_]{0,9}$/), decimal), { maxLength: 3 })
const item = fc.record({
  asked: fc
    .record({ name: text, version: text, count: decimal, given: fc.option(variables) })
    .map(({ given, ...asked }): RequestedItem => (given === null ? asked : { ...asked, variables: new Map(given) })),
  outcome,
  metaData: fc.option(fc.dictionary(text, fc.jsonValue()), { nil: undefined }),
})
const account = fc.oneof(
  fc.tuple(uuid, text, fc.nat(99)).map(([instance, id, period]) => lineAccount(instance, id, period)),
  fc.tuple(uuid, text, text).map(([instance, id, action]) => actionAccount(instance, id, action)),
  fc
    .tuple(uuid, text, fc.record({ type: text, value: text }))
    .map(([instance, id, requester]) => limitAccount(instance, id, requester, 0)),
)
const version = fc.integer({ min: 1, max: 1_000_000 })
/** Often the same in two entries that follow each other. */
const instant = fc.oneof(fc.constantFrom(0, 1, 2), fc.nat(253_402_300_799_999))

function variableTexts(variables: Variables): Record<string, string> {
  const texts: Record<string, string> = {}
  for (const [name, value] of variables) texts[name] = formatDecimal(value)
  return texts
}

/** The same entry as an object: what the text must say. */
function asObject({ n, reading, request, decision, metaData, ...entry }: AccessEntry): EntryBodyWire {
  return {
    n,
    kind: 'access',
    at: reading.now,
    earliest: reading.earliest,
    latest: reading.latest,
    instanceId: entry.instanceId,
    policyRevision: entry.policyRevision,
    engine: entry.engine,
    correlationId: entry.correlationId,
    requester: { type: request.requester.type, value: request.requester.value },
    items: request.items.map((asked, index) => {
      const decided = decision.items[index]!
      const granted = decided.outcome === 'GRANTED'
      return {
        item: asked.name,
        version: asked.version,
        count: formatDecimal(asked.count),
        ...(asked.variables === undefined ? {} : { variables: variableTexts(asked.variables) }),
        outcome: decided.outcome === 'REFUSED' ? decided.reason : decided.outcome,
        total: granted ? String(decided.total) : '0',
        parts: granted
          ? decided.shares.map((one) => ({
              lineItemId: one.lineItemId,
              rate: formatDecimal(one.rate),
              actionId: one.actionId,
              charged: String(one.charged),
            }))
          : [],
        ...(metaData[index] === undefined ? {} : { metaData: metaData[index] }),
      }
    }),
    postings: decision.postings.map((posting) => ({ account: posting.account, amount: String(posting.amount) })),
  }
}

it('the text of any entry is the JSON of an entry of the edge protocol', () => {
  fc.assert(
    fc.property(
      fc.array(item, { minLength: 1, maxLength: 4 }),
      fc.array(fc.record({ account, amount }), { maxLength: 4 }),
      fc.record({ type: text, value: text, dictionary: fc.constant({}) }),
      fc.record({ now: instant, earliest: instant, latest: fc.option(instant) }),
      fc.record({ n: fc.integer({ min: 1 }), policyRevision: version, engine: version, correlationId: uuid }),
      (items, postings, requester, reading, more) => {
        const entry: AccessEntry = {
          ...more,
          reading,
          instanceId: INSTANCE,
          request: { requester, items: items.map(({ asked }) => asked) },
          metaData: items.map(({ metaData }) => metaData),
          decision: { items: items.map((one) => one.outcome), postings, warnings: [] },
        }
        const written = accessEntryText(entry)
        expect(written).toBe(JSON.stringify(asObject(entry)))
      },
    ),
    { numRuns: 500 },
  )
})

it('an entry of an ordinary request is valid in the protocol', () => {
  const rate = { digits: 15n, scale: 1 }
  const charged = 1_500_000n
  const text = accessEntryText({
    n: 1,
    reading: { now: 3, earliest: 2, latest: null },
    instanceId: INSTANCE,
    policyRevision: 7,
    engine: 3,
    correlationId: INSTANCE,
    request: {
      requester: { type: 'user', value: 'Zoë "Z" \\', dictionary: {} },
      items: [{ name: 'print', version: '', count: { digits: 1n, scale: 0 } }],
    },
    metaData: [undefined],
    decision: {
      items: [{ outcome: 'GRANTED', shares: [{ lineItemId: 'l', rate, actionId: null, charged }], total: charged }],
      postings: [{ account: 'line/i/l/0', amount: charged }],
      warnings: [],
    },
  })
  expect(entryBody.parse(JSON.parse(text))).toMatchObject({ n: 1, postings: [{ amount: charged }] })
})

const balance: fc.Arbitrary<AvailableBalance> = fc
  .record({
    left: fc.oneof(amount, fc.constant('UNLIMITED' as const)),
    shortage: fc.constantFrom(
      'POOL' as const,
      'GRANT' as const,
      'GRANT_EXPIRED' as const,
      'RECOVERY' as const,
      'COUNTER' as const,
    ),
    overspend: fc.option(amount),
  })
  .map(({ overspend, ...rest }) => (overspend === null ? rest : { ...rest, overspend }))

it('the inputs of a decision are read as they were written', () => {
  const versions = fc.constantFrom('v1.0' as const, 'v1.1' as const, null)
  fc.assert(
    fc.property(
      versions,
      fc.array(balance, { maxLength: 3 }),
      fc.dictionary(text, text),
      (apiVersion, balances, given) => {
        const dictionary = { ...given }
        const read = parseDecisionInputs(decisionInputsText(apiVersion, balances, dictionary))
        expect(read).toEqual({ apiVersion, balances, dictionary })
      },
    ),
  )
})

it('the inputs of a decision are short', () => {
  const balances: AvailableBalance[] = [
    { left: 5n, shortage: 'GRANT' },
    { left: 'UNLIMITED', shortage: 'POOL' },
    { left: 0n, shortage: 'RECOVERY', overspend: 7n },
  ]
  expect(decisionInputsText('v1.1', balances, { a: 'b' })).toBe('1;5G,*P,0R+7;{"a":"b"}')
  expect(decisionInputsText(null, [], {})).toBe('-;;')
})

it.each(['', '2;;', '1;5Q;', '1;5P,;', '1;-5P;', '1;5P+;', '1;;{', '1;;[]', '1;;null', '1;;5'])(
  'a text that is not of the inputs of a decision is not read: %s',
  (other) => {
    expect(parseDecisionInputs(other)).toBeUndefined()
  },
)
