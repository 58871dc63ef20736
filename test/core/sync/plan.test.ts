import fc from '../../support/fast-check.ts'
import { expect, test } from 'vitest'
import { type LinkState, plan, type PolicyState, type LinkSession } from '../../../src/core/sync/plan.ts'

const policy: PolicyState = { instanceId: 'a', applied: 3, newest: 3, tried: false }
const session: LinkSession = {
  instanceId: 'a',
  sessionId: 's',
  aliveAt: 1_000,
  checkedAt: 1_000,
  needsCheck: false,
  tried: false,
}

/** Nothing to do: all is delivered, known and young. */
const IDLE: LinkState = {
  enrollment: 'DONE',
  key: 'SETTLED',
  epoch: 1,
  fence: 'NONE',
  unacknowledged: false,
  unsealed: 0,
  moreToSend: false,
  needsTokens: false,
  returnsAll: false,
  hasSpare: false,
  expectsNews: false,
  policies: [policy],
  sessions: [session],
  connected: true,
  syncedAt: 1_000,
  now: 1_001,
  syncEveryMs: 60_000,
  heartbeatEveryMs: 600_000,
  checkEveryMs: 3_600_000,
  batchEntries: 100,
}

/** A plan in short: one word for each step. */
function words(changes: Partial<LinkState>): string[] {
  return plan({ ...IDLE, ...changes }).map((step) => {
    if (step.kind !== 'seal-and-send') return step.kind
    return `seal${step.release ? ' release' : ''}${step.final ? ' final' : ''}`
  })
}

test('a device that has nothing to do does nothing', () => {
  expect(words({})).toEqual([])
})

test('a device without an identity enrolls, or waits for a token, and does nothing else', () => {
  const rest = { epoch: 0, unsealed: 7, expectsNews: true }
  expect(words({ ...rest, enrollment: 'POSSIBLE' })).toEqual(['enroll'])
  expect(words({ ...rest, enrollment: 'IMPOSSIBLE' })).toEqual([])
})

test.each([
  ['REPLACE', 'replace-key'],
  ['PREPARE', 'prepare-key'],
  ['ANNOUNCE', 'announce-key'],
  ['SHOW', 'show-links'],
] as const)('a key that is to %s comes before everything but the enrollment', (key, step) => {
  expect(words({ key, epoch: 0, unacknowledged: true, expectsNews: true })).toEqual([step])
})

test.each(['ABANDONED', 'FORKED'] as const)('an epoch that is %s is followed by the next one at once', (fence) => {
  expect(words({ fence, unacknowledged: true, unsealed: 7, expectsNews: true })).toEqual(['attach'])
})

test('each instance without rules has them fetched once a round, before the segment; newer ones after it', () => {
  const policies = [
    { ...policy, instanceId: 'none', applied: 0, newest: 0 },
    { ...policy, instanceId: 'first', applied: 0, newest: 4 },
    { ...policy, instanceId: 'tried', applied: 0, tried: true },
    { ...policy, instanceId: 'old', applied: 3, newest: 4 },
    { ...policy, instanceId: 'new', applied: 4, newest: 4 },
  ]
  const steps = plan({ ...IDLE, policies, expectsNews: true })
  expect(steps.map((step) => ('instanceId' in step ? step.instanceId : step.kind))).toEqual([
    'none',
    'first',
    'seal-and-send',
    'old',
  ])
})

test.each<[string, Partial<LinkSession>, boolean]>([
  ['was heard of and checked lately', { aliveAt: 1_000, checkedAt: 1_000 }, false],
  ['was silent for almost too long', { aliveAt: 4_000_000 - 599_999, checkedAt: 4_000_000 }, false],
  ['was silent for too long', { aliveAt: 4_000_000 - 600_000, checkedAt: 4_000_000 }, true],
  ['was checked almost too long ago', { aliveAt: 4_000_000, checkedAt: 4_000_000 - 3_599_999 }, false],
  ['was checked too long ago', { aliveAt: 4_000_000, checkedAt: 4_000_000 - 3_600_000 }, true],
])('a session that %s', (_when, changes, isDue) => {
  const now = changes.aliveAt === 1_000 ? 1_001 : 4_000_000
  const state = { now, syncedAt: now, sessions: [{ ...session, ...changes }] }
  expect(words(state)).toEqual(isDue ? ['heartbeat'] : [])
})

test('without an epoch there is nothing but the attach', () => {
  expect(words({ epoch: 0, expectsNews: true, policies: [{ ...policy, applied: 0 }] })).toEqual(['attach'])
})

test('a sealed segment goes before a new one', () => {
  expect(words({ unacknowledged: true, needsTokens: true, unsealed: 200 })).toEqual(['send-segment'])
})

test.each<[string, Partial<LinkState>]>([
  ['an account wants tokens', { needsTokens: true }],
  ['an administrator asks for a sync', { expectsNews: true }],
  ['the segment before was full', { moreToSend: true }],
  ['there are entries enough', { unsealed: 100 }],
  ['contact was lost', { connected: false }],
  ['there was no segment since the start', { syncedAt: null }],
  ['the time is up', { now: 61_000 }],
])('a segment is due when %s', (_when, changes) => {
  expect(words(changes)).toEqual(['seal'])
})

test('a few entries wait for the next segment', () => {
  expect(words({ unsealed: 99 })).toEqual([])
})

test('tokens return with their own kind of segment', () => {
  expect(words({ returnsAll: true })).toEqual(['seal release'])
})

test('a fenced epoch delivers the rest as final, returns nothing, and then the device attaches again', () => {
  expect(words({ fence: 'FENCED', unsealed: 5, returnsAll: true })).toEqual(['seal final'])
  expect(words({ fence: 'FENCED' })).toEqual(['seal final'])
  expect(words({ fence: 'FENCED', unacknowledged: true })).toEqual(['send-segment'])
  expect(words({ fence: 'CLOSED' })).toEqual(['attach'])
})

test('a closed epoch is left only when nothing of it is undelivered', () => {
  expect(words({ fence: 'CLOSED', unacknowledged: true })).toEqual(['send-segment'])
  expect(words({ fence: 'CLOSED', unsealed: 1 })).toEqual(['seal final'])
})

test('rules that are missing come before segments, newer ones after', () => {
  const missing = { ...policy, instanceId: 'b', applied: 0, newest: 0 }
  const newer = { ...policy, newest: 4 }
  expect(words({ policies: [newer, missing], expectsNews: true })).toEqual(['fetch-policy', 'seal', 'fetch-policy'])
  expect(plan({ ...IDLE, policies: [newer, missing] })).toMatchObject([{ instanceId: 'b' }, { instanceId: 'a' }])
})

test('a step is tried only once in a round', () => {
  expect(words({ policies: [{ ...policy, newest: 4, tried: true }] })).toEqual([])
  expect(words({ policies: [{ ...policy, applied: 0, tried: true }] })).toEqual([])
  expect(words({ sessions: [{ ...session, sessionId: null, tried: true }] })).toEqual([])
})

test('a session is opened, kept alive, and checked now and then or when the cloud may have changed it', () => {
  expect(words({ sessions: [{ ...session, sessionId: null }] })).toEqual(['open-session'])
  expect(words({ sessions: [{ ...session, needsCheck: true }] })).toEqual(['heartbeat'])
  expect(words({ now: 601_000, syncedAt: 600_000 })).toEqual(['heartbeat'])
  expect(words({ now: 601_000, syncedAt: 600_000, sessions: [{ ...session, aliveAt: 600_000 }] })).toEqual([])
  const later = { now: 3_601_000, syncedAt: 3_600_000 }
  expect(words({ ...later, sessions: [{ ...session, aliveAt: 3_600_000 }] })).toEqual(['heartbeat'])
})

const state = fc.record<LinkState>({
  enrollment: fc.constantFrom('DONE', 'POSSIBLE', 'IMPOSSIBLE'),
  key: fc.constantFrom('SETTLED', 'PREPARE', 'ANNOUNCE', 'REPLACE', 'SHOW'),
  epoch: fc.nat({ max: 3 }),
  fence: fc.constantFrom('NONE', 'FENCED', 'CLOSED'),
  unacknowledged: fc.boolean(),
  unsealed: fc.nat({ max: 200 }),
  moreToSend: fc.boolean(),
  needsTokens: fc.boolean(),
  returnsAll: fc.boolean(),
  hasSpare: fc.boolean(),
  expectsNews: fc.boolean(),
  policies: fc.array(fc.record({ instanceId: fc.uuid(), applied: fc.nat(3), newest: fc.nat(3), tried: fc.boolean() }), {
    maxLength: 3,
  }),
  sessions: fc.array(
    fc.record({
      instanceId: fc.uuid(),
      sessionId: fc.option(fc.uuid()),
      aliveAt: fc.nat(),
      checkedAt: fc.nat(),
      needsCheck: fc.boolean(),
      tried: fc.boolean(),
    }),
    { maxLength: 3 },
  ),
  connected: fc.boolean(),
  syncedAt: fc.option(fc.nat()),
  now: fc.nat(),
  syncEveryMs: fc.nat(),
  heartbeatEveryMs: fc.nat(),
  checkEveryMs: fc.nat(),
  batchEntries: fc.integer({ min: 1, max: 100 }),
})

test('in any state, a plan never has two segments, never overtakes one, and never omits entries', () => {
  fc.assert(
    fc.property(state, (some) => {
      const kinds = plan(some).map(({ kind }) => kind)
      const segments = kinds.filter((kind) => kind === 'send-segment' || kind === 'seal-and-send')
      expect(segments.length).toBeLessThanOrEqual(1)
      if (some.unacknowledged) expect(kinds).not.toContain('seal-and-send')
      else expect(kinds).not.toContain('send-segment')
      if (kinds.includes('attach')) {
        expect(kinds).toEqual(['attach'])
        if (some.epoch > 0) expect([some.unacknowledged, some.unsealed]).toEqual([false, 0])
      }
      if (some.enrollment !== 'DONE') expect(kinds.filter((kind) => kind !== 'enroll')).toEqual([])
    }),
  )
})
