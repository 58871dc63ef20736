// What is noted of a shortage, what it recalls and reserves, and who is notified.
import { expect, describe, it } from 'vitest'
import { lineAccount } from '../../../../src/core/accounts/account.ts'
import { MICRO_MAX } from '../../../../src/core/pricing/amount.ts'
import { newPool } from '../../../../src/cloud/accounts/pool.ts'
import type { AccountMove } from '../../../../src/cloud/accounts/move-pools.ts'
import {
  NO_SHORTAGES,
  type Recall,
  type Shortage,
  newDeviceAccount,
} from '../../../../src/cloud/storage/device-records.ts'
import type { MergeContext } from '../../../../src/cloud/sync/merge-context.ts'
import {
  type Lack,
  isShortNow,
  noteLack,
  noteServed,
  recallsFrom,
  shortTimes,
  spareFor,
} from '../../../../src/cloud/sync/grants/rebalance.ts'
import { shortagesOf } from '../../../../sim/sharing/shortages-of.ts'
import { NOW, ShortageTables } from './shortages.ts'
import { RELEASES_MAX } from '../../../../src/protocol/edge/sync.ts'

const MINUTE = 60_000
const HOUR = 60 * MINUTE
const SYNC = 5 * MINUTE
const terms = { syncEveryMs: SYNC }
const LINE = lineAccount('64d2028c-ae87-4069-a624-66089d957ef9', 'ACT-1', 0)

const shortage: Shortage = {
  ...{ account: LINE, who: 'other', lacking: 20n, enough: 20n, keep: 5n },
  ...{ since: NOW - MINUTE, at: NOW - MINUTE, recalledAt: NOW - MINUTE, notifiedAt: null },
}

describe('a shortage', () => {
  it('counts for two sync intervals, if it recalls', () => {
    expect(isShortNow(shortage, NOW, terms)).toBe(true)
    expect(isShortNow({ ...shortage, keep: null }, NOW, terms)).toBe(false)
    expect(isShortNow({ ...shortage, keep: 0n, at: NOW - 2 * SYNC + 1 }, NOW, terms)).toBe(true)
    expect(isShortNow({ ...shortage, at: NOW - 2 * SYNC }, NOW, terms)).toBe(false)
  })

  it('ends with its recall, once', async () => {
    const world = new ShortageTables()
    await noteServed(world.tx, shortage, NOW)
    await noteServed(world.tx, { ...shortage, keep: null }, NOW)
    await noteServed(world.tx, { ...shortage, lacking: 0n }, NOW)
    const ended = { ...shortage, lacking: 0n, keep: null, notifiedAt: NOW }
    expect(world.saved).toEqual([ended, ended, ended])
    await noteServed(world.tx, ended, NOW)
    expect(world.saved).toHaveLength(3)
  })
})

describe('the tokens that can be granted in advance', () => {
  const asking = { isInUse: false, wanted: 30n, share: 30n, usable: 50n, known: [shortage] }
  const spare = (part: Partial<typeof asking>) => {
    const { known, ...rest } = { ...asking, ...part }
    return spareFor({ ...rest, noted: shortagesOf(known, shortTimes(NOW, terms), 'me') }, NOW)
  }

  it('are all except those that others were refused', () => {
    expect(spare({ known: [] })).toBe(50n)
    expect(spare({})).toBe(30n)
    expect(spare({ known: [shortage, { ...shortage, who: 'third', lacking: 7n }] })).toBe(23n)
    expect(spare({ known: [{ ...shortage, who: 'me' }] })).toBe(50n)
    expect(spare({ known: [{ ...shortage, at: NOW - 2 * SYNC }] })).toBe(50n)
  })

  it('is nothing for an hour after a recall to a device that does not use the account and wants above its share', () => {
    const wants = { wanted: 31n }
    expect(spare(wants)).toBe(0n)
    expect(spare({ ...wants, isInUse: true })).toBe(30n)
    expect(spare({ ...wants, known: [{ ...shortage, who: 'me' }] })).toBe(50n)
    expect(spare({ ...wants, known: [{ ...shortage, keep: null, recalledAt: null }] })).toBe(50n)
    const recalledAt = NOW - HOUR
    expect(spare({ ...wants, known: [{ ...shortage, recalledAt }] })).toBe(30n)
    expect(spare({ ...wants, known: [{ ...shortage, recalledAt: recalledAt + 1 }] })).toBe(0n)
  })
})

describe('a note', () => {
  const pool = { ...newPool(LINE, 100n), grantedOut: 90n }
  const lack: Lack = {
    ...{ pool, who: 'me', deviceId: 'me', lacking: 40n, recalled: 30n, usable: 10n, share: 33n },
    ...{ returnable: { inContact: 90n, all: 90n }, noted: NO_SHORTAGES },
  }
  type Part = Partial<Lack> & { readonly known?: readonly Shortage[] }
  async function note({ known = [], ...part }: Part, ...available: readonly bigint[]): Promise<ShortageTables> {
    const world = new ShortageTables(...available)
    const noted = shortagesOf(known, shortTimes(NOW, terms), 'me')
    await noteLack({ deps: { terms }, tx: world.tx, now: NOW }, { ...lack, noted, ...part })
    return world
  }
  const own = (part: Partial<Shortage>): Shortage => ({ ...shortage, who: 'me', ...part })

  it('recalls down to the level at which those above it return enough, and notifies as many as that takes', async () => {
    const world = await note({}, 60n, 30n)
    expect(world.saved).toEqual([
      {
        ...{ account: LINE, who: 'me', lacking: 40n, enough: 40n, keep: 30n },
        ...{ since: NOW, at: NOW, recalledAt: NOW, notifiedAt: null },
      },
    ])
    expect(world.notified).toEqual(['d0'])
    expect(world.asked.slice(0, 3)).toEqual([LINE, 'me', NOW - 3 * SYNC])
    const both = await note({}, 50n, 40n)
    expect([both.saved[0]?.keep, both.notified, both.appended]).toEqual([30n, ['d0', 'd1'], 1])
  })

  it('recalls also the tokens that others were refused', async () => {
    expect((await note({ known: [shortage] }, 60n, 30n)).saved[0]?.keep).toBe(20n)
    expect((await note({ known: [{ ...shortage, at: 0 }] }, 60n, 30n)).saved[0]?.keep).toBe(30n)
    expect((await note({ known: [own({ since: NOW })] }, 60n, 30n)).saved[0]?.keep).toBe(30n)
  })

  it('of the cloud itself asks all devices', async () => {
    expect((await note({ deviceId: null }, 60n)).asked[1]).toBe('')
  })

  it('says how many free tokens suffice, including those reserved for the cloud', async () => {
    expect((await note({ usable: 4n })).saved[0]?.enough).toBe(46n)
    expect((await note({ lacking: 0n }, 60n)).saved[0]?.enough).toBe(1n)
    expect((await note({ lacking: MICRO_MAX, returnable: { inContact: 0n, all: MICRO_MAX } })).saved[0]).toMatchObject({
      ...{ lacking: MICRO_MAX, enough: MICRO_MAX },
    })
  })

  it('in advance recalls the tokens above the share', async () => {
    const world = await note({ lacking: 0n }, 60n, 30n)
    expect(world.saved).toMatchObject([{ lacking: 0n, keep: 33n, since: NOW }])
    expect(world.notified).toEqual(['d0'])
  })

  it('notifies no device without tokens above the level', async () => {
    const world = await note({ lacking: 0n }, 33n, 30n)
    expect([world.notified, world.appended, world.saved.length]).toEqual([[], 0, 1])
  })

  it('recalls everything when a sync interval has not brought it', async () => {
    const late = own({ since: NOW - SYNC, at: NOW - 1, recalledAt: NOW - MINUTE })
    const world = await note({ known: [late] }, 60n, 30n)
    expect(world.saved).toMatchObject([{ keep: 0n, since: NOW - SYNC, recalledAt: NOW }])
    // The first one alone would bring more than is missing.
    expect(world.notified).toEqual(['d0'])
    // The first one alone would bring exactly what is missing.
    expect((await note({ known: [late] }, 30n, 30n)).notified).toEqual(['d0'])
    expect((await note({ known: [{ ...late, since: NOW - SYNC + 1 }] }, 60n, 30n)).saved[0]?.keep).toBe(30n)
  })

  it('starts again if the previous one is over, or was only in advance', async () => {
    for (const part of [{ lacking: 0n }, { keep: null }, { at: NOW - 2 * SYNC }]) {
      expect((await note({ known: [own(part)] }, 60n)).saved[0]?.since).toBe(NOW)
    }
    expect((await note({ known: [own({})] }, 60n)).saved[0]?.since).toBe(NOW - MINUTE)
    expect((await note({ lacking: 0n, known: [own({})] }, 60n)).saved[0]?.since).toBe(NOW)
  })

  it('notifies again after a second, or in advance after a sync interval', async () => {
    const recalled = async (before: number, part: Partial<Lack> = {}) => {
      const { saved, notified } = await note({ known: [own({ recalledAt: NOW - before })], ...part }, 60n)
      return [NOW - (saved[0]?.recalledAt ?? 0), notified.length]
    }
    expect(await recalled(999)).toEqual([999, 0])
    expect(await recalled(1_000)).toEqual([0, 1])
    expect(await recalled(SYNC - 1, { lacking: 0n })).toEqual([SYNC - 1, 0])
    expect(await recalled(SYNC, { lacking: 0n })).toEqual([0, 1])
    expect((await note({ known: [own({ recalledAt: null })] }, 60n)).notified).toEqual(['d0'])
  })

  it('recalls nothing where that cannot bring enough, and is rewritten twice an hour', async () => {
    const none: readonly Partial<Lack>[] = [
      { recalled: 0n },
      { returnable: { inContact: 0n, all: 0n }, lacking: 10n },
      { returnable: { inContact: 29n, all: 29n } },
    ]
    for (const part of none) {
      expect((await note({ ...part, known: [own({ recalledAt: 7, notifiedAt: 8 })] }, 60n)).saved).toMatchObject([
        { keep: null, recalledAt: 7, notifiedAt: 8, at: NOW },
      ])
    }
    const same = (at: number) => own({ keep: null, enough: 40n, at })
    expect((await note({ recalled: 0n, known: [same(NOW - HOUR / 2 + 1)] })).saved).toEqual([])
    expect((await note({ recalled: 0n, known: [same(NOW - HOUR / 2)] })).saved).toHaveLength(1)
    expect((await note({ recalled: 0n, known: [{ ...same(NOW), enough: 39n }] })).saved).toHaveLength(1)
    expect((await note({ recalled: 0n, known: [{ ...same(NOW), keep: 0n }] })).saved).toHaveLength(1)
    // As much as can be returned is recalled.
    expect((await note({ returnable: { inContact: 30n, all: 30n } }, 60n)).saved[0]?.keep).toBe(30n)
  })
})

describe('the tokens that a device must return', () => {
  const balance = (account: string, available: bigint, level: bigint) => ({ account, available, level })
  interface Found {
    readonly short?: readonly ReturnType<typeof balance>[]
    readonly aboveCaps?: readonly ReturnType<typeof balance>[]
    readonly moves?: readonly AccountMove[]
  }
  async function recalls({ short = [], aboveCaps = [], moves = [] }: Found): Promise<readonly Recall[]> {
    const edge = {
      shortages: {
        recallsFrom: async (device: string, epoch: number, noted: unknown, most: number) => {
          expect([device, epoch, noted, most]).toEqual(['me', 3, { since: NOW - 2 * SYNC, until: NOW }, RELEASES_MAX])
          return {
            aboveCaps: aboveCaps.map(({ level, ...rest }) => ({ ...rest, above: level })),
            recalls: short.map(({ level, ...rest }) => ({ ...rest, keep: level })),
          }
        },
      },
    }
    const context = { tx: { edge }, device: { id: 'me' }, epoch: { number: 3 }, now: NOW, deps: { terms } }
    return recallsFrom(context as unknown as MergeContext, moves)
  }
  const record = newDeviceAccount('me', 3, LINE)
  const spent = (used: bigint, refunded = 0n): AccountMove => ({
    before: { ...record, used: 100n, refunded: 10n },
    after: { ...record, used: 100n + used, refunded: 10n + refunded },
  })

  it('are those above the level, counted from before this segment', async () => {
    const short = [balance(LINE, 40n, 30n)]
    expect(await recalls({ short })).toEqual([{ account: LINE, keep: 30n }])
    expect(await recalls({ short, moves: [spent(12n, 2n)] })).toEqual([{ account: LINE, keep: 20n }])
    expect(await recalls({ short, moves: [spent(30n)] })).toEqual([{ account: LINE, keep: 0n }])
    expect(await recalls({ short, moves: [spent(31n)] })).toEqual([{ account: LINE, keep: 0n }])
    expect(await recalls({ short, moves: [spent(2n, 12n)] })).toEqual([{ account: LINE, keep: 30n }])
    expect(await recalls({ short: [balance(LINE, 30n, 30n)] })).toEqual([])
  })

  it('are those above a lowered cap, or more if other devices need them', async () => {
    const aboveCaps = [balance(LINE, 40n, 15n)]
    expect(await recalls({ aboveCaps })).toEqual([{ account: LINE, keep: 25n }])
    expect(await recalls({ aboveCaps: [balance(LINE, 10n, 15n)] })).toEqual([{ account: LINE, keep: 0n }])
    expect(await recalls({ aboveCaps, short: [balance(LINE, 40n, 30n)] })).toEqual([{ account: LINE, keep: 25n }])
    expect(await recalls({ aboveCaps, short: [balance(LINE, 40n, 20n)] })).toEqual([{ account: LINE, keep: 20n }])
  })

  it('is as much as a response has place for', async () => {
    const named = (name: string) =>
      Array.from({ length: RELEASES_MAX }, (_, index) => balance(`${name}-${index}`, 40n, 15n))
    const found = await recalls({ aboveCaps: named('cap'), short: named('short') })
    expect(found.map(({ account }) => account)).toEqual(named('cap').map(({ account }) => account))
  })
})
