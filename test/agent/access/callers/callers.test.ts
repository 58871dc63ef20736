// Who may do what, and how much of it; with the real kernel where it is the kernel that says who calls.
import { connect, createServer } from 'node:net'
import { mkdtempSync, rmSync, writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import fc from '../../../support/fast-check.ts'
import { describe, expect, it, onTestFinished } from 'vitest'
import type { CodedError } from '../../../../src/protocol/errors.ts'
import { systemNames } from '../../../../src/agent/platform/system/names.ts'
import { idsOf, knownCaller, openPeerCredentials } from '../../../../src/agent/platform/system/peer-credentials.ts'
import { type Caller, type CallerSettings, Callers } from '../../../../src/agent/access/callers/callers.ts'
import { Bucket } from '../../../../src/agent/runtime/bucket.ts'

const OWN = 990
const anna: Caller = { uid: 1_000, gids: [1_000, 50], pid: 7 }
const bob: Caller = { uid: 1_001, gids: [2_001], pid: 8 }
const names = {
  user: (name: string) => ({ anna: 1_000, bob: 1_001 })[name],
  group: (name: string) => ({ plant: 50 })[name],
}

function callers(settings: Partial<CallerSettings>, now: () => number = () => 0): Callers {
  return new Callers({ use: '*', observe: '*', administer: 'uid:0', limits: null, ...settings }, names, OWN, now)
}

describe('a role', () => {
  it.each([
    ['*', [true, true]],
    ['user:anna', [true, false]],
    ['uid:1001', [false, true]],
    ['group:plant', [true, false]],
    ['gid:50, uid:1001', [true, true]],
    ['gid:4', [false, false]],
    ['gid:1001', [false, false]],
    ['gid:2001', [false, true]],
    ['user:bob', [false, true]],
    ['gid:1000', [true, false]],
    ['uid:50', [false, false]],
    ['group:plant , uid:7', [true, false]],
  ])('of %s lets in whom it names', (use, expected) => {
    const rules = callers({ use })
    expect([rules.isIn(anna, 'use'), rules.isIn(bob, 'use')]).toEqual(expected)
  })

  it('always includes root and the user of the agent', () => {
    const rules = callers({ use: 'uid:5' })
    expect([0, OWN, 4].map((uid) => rules.isIn({ uid, gids: [], pid: 1 }, 'use'))).toEqual([true, true, false])
  })

  it('turns others away with a code', () => {
    expect(() => callers({ observe: 'user:anna' }).require(bob, 'observe')).toThrow(
      expect.objectContaining({ code: 'CALLER_NOT_ALLOWED' }),
    )
    callers({ observe: 'user:anna' }).require(anna, 'observe')
    expect(() => callers({ administer: 'uid:0' }).require(bob, 'administer')).toThrow(
      expect.objectContaining({ details: { uid: 1_001, pid: 8, role: 'administer' } }),
    )
  })

  it.each(['use', 'observe', 'administer'] as const)('names the invalid list of an operator: %s', (list) => {
    const wrong = (text: string) => () => callers({ [list]: text })
    expect(wrong('uid:x')).toThrow(`callers.${list}: uid:x is no number of a user or group.`)
    expect(wrong('anna')).toThrow(`callers.${list}: "anna" is not one of *, user:NAME, uid:N, group:NAME, gid:N.`)
    expect(wrong('group:nobody')).toThrow(`callers.${list}: this system has no group nobody.`)
  })

  it.each([
    '',
    'anna',
    'user:',
    'uid:1x',
    'uid:x1',
    'uid:12345678901',
    'user:nobody-here',
    'uid:x',
    'uid:1;uid:2',
    'group:50x',
    'user:anna,',
  ])('is a mistake of the operator when it reads %j', (use) => {
    expect(() => callers({ use })).toThrow(expect.objectContaining({ code: 'CONFIG_INVALID' }))
  })
})

describe('the quota of a caller', () => {
  it('is a pace, a budget and a requester, of the first entry that names it', () => {
    let now = 0
    const limits = 'user:anna = 10 tokens/h, 2 requests/s, as machine:press-4; * = 1 requests/s'
    const rules = callers({ limits }, () => now)
    const quota = rules.quotaOf(anna)!
    const ask = () => quota.request({ type: 'machine', value: 'press-4' })
    expect(() => quota.request({ type: 'machine', value: 'press-5' })).toThrow('requester machine:press-4 only')
    for (const wrong of [
      { type: 'machine', value: 'press-5' },
      { type: 'user', value: 'press-4' },
    ]) {
      expect(() => quota.request(wrong)).toThrow(expect.objectContaining({ code: 'CALLER_NOT_ALLOWED' }))
    }
    ask()
    ask()
    expect(ask).toThrow(expect.objectContaining({ code: 'CALLER_LIMITED' }))
    now += 500
    ask()
    quota.spend(9_000_000n)
    expect(() => quota.spend(2_000_000n)).toThrow(expect.objectContaining({ details: { retryAfterMs: 360_000 } }))
    quota.spend(1_000_000n)
    now += 360_000
    quota.spend(1_000_000n)
    expect(rules.quotaOf({ ...anna, pid: 99 })?.key).toBe(quota.key)
    rules.quotaOf(bob)?.request({ type: 'any', value: 'body' })
    expect(() => rules.quotaOf(bob)?.request({ type: 'any', value: 'body' })).toThrow()
    rules.quotaOf(bob)?.spend(10n ** 15n)
    rules.quotaOf(bob)?.unspend(1n)
    rules.quotaOf(bob)?.charged(1n)
  })

  it('names no time to wait for a request that costs more than the tokens of an hour', () => {
    const quota = callers({ limits: '* = 10 tokens/h' }).quotaOf(anna)!
    expect(() => quota.spend(10_000_001n)).toThrow(
      expect.objectContaining({
        code: 'CALLER_NOT_ALLOWED',
        message: 'uid:1000 may spend 10 tokens per hour, which is less than this request costs',
      }),
    )
    quota.spend(10_000_000n)
  })

  it('names no time to wait for a caller that may make no requests', () => {
    const quota = callers({ limits: '* = 0 requests/s' }).quotaOf(anna)!
    const refused = expect.objectContaining({ code: 'CALLER_NOT_ALLOWED' }) as unknown
    expect(() => quota.request({ type: 'user', value: 'ada' })).toThrow(refused)
    expect(() => quota.open(0)).toThrow(refused)
  })

  it('limits concurrent sessions, and counts the opening of each as a request', () => {
    const rules = callers({ limits: 'user:anna = 3 sessions, 2 requests/s; uid:1001 = 1 sessions' })
    const quota = rules.quotaOf(anna)!
    expect(() => quota.open(3)).toThrow(expect.objectContaining({ code: 'SESSIONS_LIMITED' }))
    quota.open(2)
    quota.open(0)
    expect(() => quota.open(0)).toThrow(/2 requests per second/)
    expect(() => rules.quotaOf(bob)?.open(1)).toThrow(/may have 1 open session$/)
    const free = callers({ limits: '* = 5 tokens/h' }).quotaOf(anna)!
    expect(() => free.open(1_000)).not.toThrow()
    expect(free.connectionsMax).toBeNull()
  })

  it('counts automatic charges, and not those that were undone', () => {
    const rules = callers({ limits: '* = 10 tokens/h' })
    const quota = rules.quotaOf(anna)!
    quota.spend(10_000_000n)
    quota.unspend(10_000_000n)
    quota.spend(10_000_000n)
    quota.unspend(10_000_000n)
    rules.quotaOfOwner('uid:1000')?.charged(15_000_000n)
    expect(() => quota.spend(1n)).toThrow(expect.objectContaining({ code: 'CALLER_LIMITED' }))
    expect(rules.quotaOfOwner(null)).toBeUndefined()
  })

  it('is one budget for requested and automatic charges', () => {
    const quota = callers({ limits: '* = 10 tokens/h' }).quotaOf(anna)!
    quota.unspend(0n)
    quota.spend(9_000_000n)
    quota.charged(2_000_000n)
    expect(() => quota.spend(1n)).toThrow(expect.objectContaining({ code: 'CALLER_LIMITED' }))
  })

  it('counts only the kinds of use that its limit names, so that other use does not fill the counters', () => {
    const limits = 'uid:1 = 2 connections; uid:2 = 5 tokens/h; uid:3 = 3 requests/s; * = 1 tokens/h'
    const rules = callers({ limits }, () => 0)
    const by = (uid: number) => rules.quotaOf({ uid, gids: [], pid: 1 })!
    const ask = { type: 'user', value: 'ada' }
    by(3).request(ask)
    for (let uid = 11; uid < 10_010; uid += 1) by(uid).spend(1n)
    expect(() => by(10_010).spend(1n)).toThrow(expect.objectContaining({ code: 'CALLER_LIMITED' }))
    by(1).request(ask)
    by(1).spend(10n ** 15n)
    by(2).request(ask)
    by(2).spend(0n)
    by(3).spend(10n ** 15n)
    expect(() => by(2).spend(1n)).toThrow(expect.objectContaining({ code: 'CALLER_LIMITED' }))
  })

  it('follows new settings at once, and keeps the remaining quota where they do not change', () => {
    const rules = callers({ limits: '* = 10 tokens/h, 8 connections' })
    const limitsOf = (limits: string) => ({ use: '*', observe: '*', administer: 'uid:0', limits })
    rules.quotaOf(anna)?.spend(4_000_000n)
    rules.prepare({ ...limitsOf('* = 10 tokens/h, 8 connections'), observe: 'uid:0' })()
    expect(() => rules.quotaOf(anna)?.spend(7_000_000n)).toThrow(expect.objectContaining({ code: 'CALLER_LIMITED' }))
    expect(rules.isIn(anna, 'observe')).toBe(false)

    const apply = rules.prepare(limitsOf('* = 1 tokens/h, 2 connections'))
    rules.quotaOf(anna)?.spend(2_000_000n)
    apply()
    expect(rules.quotaOf(anna)?.connectionsMax).toBe(2)
    rules.quotaOf(anna)?.spend(1_000_000n)
    expect(() => rules.quotaOf(anna)?.spend(1n)).toThrow(expect.objectContaining({ code: 'CALLER_LIMITED' }))
    expect(() => rules.prepare(limitsOf('* = many tokens/h'))).toThrow(
      expect.objectContaining({ code: 'CONFIG_INVALID' }),
    )
    expect(rules.quotaOf(anna)?.connectionsMax).toBe(2)
  })

  it('remembers the use of a caller, however many others call', () => {
    let now = 0
    const rules = callers({ limits: '* = 1 tokens/h' }, () => now)
    const by = (uid: number) => rules.quotaOf({ uid, gids: [], pid: 1 })!
    by(1).spend(1_000_000n)
    for (let uid = 2; uid <= 20_050; uid += 1) {
      if (uid % 5_000 === 0) now += 4
      by(uid).spend(1n)
    }
    expect(() => by(1).spend(100n)).toThrow(expect.objectContaining({ code: 'CALLER_LIMITED' }))
    now = 3_600_000
    by(1).spend(1_000_000n)
  })

  it('refuses one more caller while as many as can be counted have used up some, and says for how long', () => {
    let now = 0
    const rules = callers({ limits: '* = 1 tokens/h' }, () => now)
    const by = (uid: number) => rules.quotaOf({ uid, gids: [], pid: 1 })!
    for (let uid = 1; uid <= 10_000; uid += 1) {
      if (uid === 10_000) now = 1_000
      by(uid).spend(1_000_000n)
    }
    const limited = (retryAfterMs: number): unknown =>
      expect.objectContaining({ code: 'CALLER_LIMITED', details: { retryAfterMs } })
    expect(() => by(10_001).spend(1n)).toThrow(limited(3_599_000))
    now = 2_000
    expect(() => by(10_001).spend(1n)).toThrow(limited(3_598_000))
    now = 3_600_000
    by(10_001).spend(1_000_000n)
    expect(() => by(10_000).spend(1_000_000n)).toThrow(expect.objectContaining({ code: 'CALLER_LIMITED' }))
  })

  it('is that of the first entry that names each process, whichever group of a user called first', () => {
    const plain: Caller = { ...anna, gids: [1_000] }
    for (const order of [
      [anna, plain],
      [plain, anna],
    ]) {
      const rules = callers({ limits: 'group:plant = 10 tokens/h, 9 connections; * = 1 tokens/h, 2 connections' })
      for (const caller of order) rules.quotaOf(caller)
      expect([rules.quotaOf(anna)?.connectionsMax, rules.quotaOf(plain)?.connectionsMax]).toEqual([9, 2])
      rules.quotaOf(anna)?.spend(10_000_000n)
      rules.quotaOf(plain)?.spend(1_000_000n)
      expect(() => rules.quotaOf(plain)?.spend(1n)).toThrow(expect.objectContaining({ code: 'CALLER_LIMITED' }))
    }
  })

  it('is nothing where no entry names the caller', () => {
    expect(callers({}).quotaOf(anna)).toBeUndefined()
    expect(callers({ limits: 'uid:5 = 1 requests/s' }).quotaOf(anna)).toBeUndefined()
  })

  it.each([
    'user:anna',
    'user:anna = ',
    'user:anna = 5',
    'user:anna = 5 tokens',
    '= 1 requests/s',
    '* = 1 requests/s = x',
    '* = as x',
    '* = 5 tokens/h and more',
    '* = about 5 tokens/h',
    '* = 5 sessions, , 5 connections',
  ])('is a mistake of the operator when it reads %j', (limits) => {
    expect(() => callers({ limits })).toThrow(expect.objectContaining({ code: 'CONFIG_INVALID' }))
  })
})

it('a limit that cannot be read is shown beside one that can', () => {
  expect(() => callers({ limits: '* = 5 tokens/h; user:anna = 5 ' })).toThrow(
    'callers.limits: "user:anna = 5" does not read like "user:hmi = 500 tokens/h, 20 requests/s, 8 connections, 10 sessions, as machine:press-4".',
  )
  expect(() => callers({ limits: 'user:nobody = 5 tokens/h' })).toThrow(
    'callers.limits: this system has no user nobody.',
  )
})

describe('an allowance', () => {
  it('never gives more than its capacity and its refill, in any sequence of requests', () => {
    fc.assert(
      fc.property(
        fc.bigInt({ min: 1n, max: 1_000_000n }),
        fc.array(fc.tuple(fc.bigInt({ min: 0n, max: 2_000_000n }), fc.integer({ min: 0, max: 5_000 })), {
          maxLength: 50,
        }),
        (capacity, asks) => {
          const bucket = new Bucket(capacity, 1_000, 0)
          let [now, taken] = [0, 0n]
          for (const [amount, passed] of asks) {
            now += passed
            if (bucket.take(amount, now)) taken += amount
            expect(taken * 1_000n <= capacity * 1_000n + capacity * BigInt(now)).toBe(true)
          }
          const wait = bucket.waitFor(capacity, now)
          expect(bucket.take(capacity, now + wait)).toBe(true)
        },
      ),
    )
  })
})

type Ask = readonly ['take' | 'owe' | 'wait for', amount: bigint, at: number] | readonly ['give', amount: bigint]

/** What each step answers, of those that answer. */
function answersOf(bucket: Bucket, asks: readonly Ask[]): readonly (boolean | number)[] {
  return asks.flatMap((ask): (boolean | number)[] => {
    if (ask[0] === 'take') return [bucket.take(ask[1], ask[2])]
    if (ask[0] === 'wait for') return [bucket.waitFor(ask[1], ask[2])]
    if (ask[0] === 'owe') bucket.owe(ask[1], ask[2])
    else bucket.give(ask[1])
    return []
  })
}

describe('an allowance that is asked at an exact moment', () => {
  const take = (amount: bigint, at = 0): Ask => ['take', amount, at]
  it.each<[string, readonly Ask[], readonly (boolean | number)[]]>([
    ['gives all that it holds, and no more', [take(10n), take(1n)], [true, false]],
    ['refuses more than it can ever hold', [take(11n, 1_000_000)], [false]],
    ['holds no more after a long time', [take(10n, 5_000), take(1n, 5_000)], [true, false]],
    ['takes nothing where it refuses', [take(11n), take(10n)], [false, true]],
    ['fills with the time', [take(10n), take(5n, 499), take(5n, 500)], [true, false, true]],
    ['holds what was given back', [take(10n), ['give', 3n], take(4n), take(3n)], [true, false, true]],
    ['holds no more than its capacity when given back', [['give', 3n], take(11n)], [false]],
    ['owes beyond what it holds', [['owe', 15n, 0], take(1n, 500), take(1n, 600)], [false, true]],
    ['fills before it owes', [['owe', 5n, 1_000], take(6n, 1_000), take(5n, 1_000)], [false, true]],
    ['is there at once where it holds enough', [['wait for', 10n, 0]], [0]],
    ['says how long to wait, to the next whole millisecond', [take(10n), ['wait for', 1n, 0]], [true, 100]],
    ['counts the time that has passed', [take(10n), ['wait for', 1n, 40]], [true, 60]],
    ['is there at once where it holds more', [['wait for', 5n, 0]], [0]],
    ['loses nothing to a clock that goes back', [take(1n, 900), take(9n)], [true, true]],
    ['takes no notice of a clock that goes back', [take(10n, 900), take(1n)], [true, false]],
    [
      'loses nothing to fractions of a millisecond',
      [take(10n, 0.9), take(1n, 99.9), take(1n, 100)],
      [true, false, true],
    ],
  ])('%s', (_name, asks, expected) => {
    expect(answersOf(new Bucket(10n, 1_000, 0), asks)).toEqual(expected)
  })

  it('without capacity never gives, and names no time', () => {
    const bucket = new Bucket(0n, 1_000, 0)
    expect([bucket.take(1n, 10_000), bucket.waitFor(1n, 10_000)]).toEqual([false, 0])
  })
})

describe('the kernel', () => {
  it('names the user and the groups of a connection', async () => {
    const identify = openPeerCredentials()
    const directory = mkdtempSync(join(tmpdir(), 'tallygate-callers-'))
    onTestFinished(() => rmSync(directory, { recursive: true }))
    const path = join(directory, 'socket')
    const found = await new Promise<Caller | CodedError>((resolve) => {
      const server = createServer((socket) => {
        resolve(identify(socket))
        socket.destroy()
        server.close()
      })
      server.listen(path, () => connect(path).on('error', () => undefined))
    })
    expect(found).toMatchObject({ uid: process.getuid?.(), pid: process.pid })
    expect(found).toMatchObject({ gids: expect.arrayContaining([process.getgid?.()]) as unknown })
  })

  it('refuses a closed connection', async () => {
    const identify = openPeerCredentials()
    const socket = connect('/nowhere').on('error', () => undefined)
    await new Promise((resolve) => socket.once('close', resolve))
    expect(identify(socket)).toMatchObject({ code: 'CALLER_NOT_ALLOWED' })
  })

  const FULL = '         0          0 4294967295\n'
  const CONTAINER = '         0     100000      65536\n'

  it.each([
    ['all users', FULL, false],
    ['all users in two parts', '0 0 1000\n1000 1000 4294966295\n', false],
    ['the users of a container', CONTAINER, true],
    ['one user', '         0       1000          1\n', true],
    ['nothing that can be read', '', true],
  ])('maps %s', (_what, map, isPartial) => {
    const ids = idsOf({ uidMap: map, gidMap: FULL, overflowUid: '65534\n', overflowGid: '65534\n' })
    expect(ids).toEqual({ sharedUid: isPartial ? 65_534 : null, sharedGid: null })
    const caller: Caller = { uid: 65_534, gids: [65_534, 7], pid: 3 }
    const known = knownCaller(caller, ids)
    if (isPartial) expect(known).toMatchObject({ code: 'CALLER_UNMAPPED', details: { uid: 65_534, pid: 3 } })
    else expect(known).toEqual(caller)
    expect(knownCaller({ ...caller, uid: 1_000 }, ids)).toEqual({ ...caller, uid: 1_000 })
  })

  it('does not name the group to which all outside groups are mapped', () => {
    const ids = idsOf({ uidMap: CONTAINER, gidMap: CONTAINER, overflowUid: '65533', overflowGid: '65534' })
    expect(ids).toEqual({ sharedUid: 65_533, sharedGid: 65_534 })
    expect(knownCaller({ uid: 65_534, gids: [65_534, 7, 65_534], pid: 3 }, ids)).toMatchObject({ gids: [7] })
  })
})

describe('names of users and groups', () => {
  it('are looked up in the files of the system', () => {
    const directory = mkdtempSync(join(tmpdir(), 'tallygate-names-'))
    onTestFinished(() => rmSync(directory, { recursive: true }))
    const [passwd, group] = [join(directory, 'passwd'), join(directory, 'group')]
    writeFileSync(passwd, 'root:x:0:0::/:/bin/sh\nhmi:x:994:993::/:/usr/sbin/nologin\nbroken\n')
    writeFileSync(group, 'plant:x:50:hmi,anna\n')
    const found = systemNames(passwd, group)
    expect([found.user('hmi'), found.user('x'), found.group('plant'), found.group('hmi')]).toEqual([
      994,
      undefined,
      50,
      undefined,
    ])
    expect(systemNames('/nowhere').user('root')).toBeUndefined()
  })
})
