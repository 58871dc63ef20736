// Which of a sales mark and a database is older: a table of what each may say.
import { expect, it } from 'vitest'
import { newPool } from '../../../../src/cloud/accounts/pool.ts'
import type { Pool } from '../../../../src/cloud/storage/records.ts'
import type { Reader, Store, Transaction } from '../../../../src/cloud/storage/store.ts'
import { compare } from '../../../../src/cloud/sync/recovery/compare.ts'
import { type Count, type SalesMark, markName } from '../../../../src/cloud/sync/recovery/sales-mark.ts'
import { type AccountId, limitAccount, lineAccount } from '../../../../src/core/accounts/account.ts'

const INSTANCE = '64d2028c-ae87-4069-a624-66089d957ef9'
const A = lineAccount(INSTANCE, 'A', 0)
/** Too long for a slot of the mark: it keeps a hash. */
const LONG = lineAccount(INSTANCE, 'L'.repeat(600), 0)
const LONG_LIMIT = limitAccount(INSTANCE, 'A', { type: 'user', value: 'x'.repeat(600) }, 0)

interface Case {
  /** Of the mark, with its counts. */
  readonly turn?: number
  readonly position?: bigint
  readonly isComplete?: boolean
  readonly counts?: readonly (readonly [AccountId, sold: bigint, reserved: bigint, atMost: bigint])[]
  /** In the database: marks by id with their turns, the usage that is settled, and what was sold. */
  readonly marks?: Readonly<Record<string, number>>
  readonly settled?: bigint
  readonly sold?: readonly (readonly [AccountId, bigint])[]
  readonly shared?: boolean
  /** What the mark contains after all is read. */
  readonly later?: Pick<Case, 'turn' | 'position' | 'counts'>
}

const compared = async ({ shared = false, ...given }: Case) => {
  const partsOf = ({ turn = 5, position = 100n, counts = [] }: Case) => {
    const list = counts.map(([account, sold, reserved, atMost]): Count => {
      return { name: markName(account), sold, reserved, atMost }
    })
    return { turn, position, counts: () => list.values() }
  }
  const mark = { id: 'own', isComplete: given.isComplete ?? true, ...partsOf(given) }
  const pools = new Map(
    (given.sold ?? []).map(([account, sold]): [AccountId, Pool] => [account, { ...newPool(account, 1_000n), sold }]),
  )
  const reader = {
    edge: {
      salesMarks: { list: async () => Object.entries(given.marks ?? { own: 5 }).map(([id, turn]) => ({ id, turn })) },
    },
    accounts: {
      ofInstance: async (instanceId: string) => (instanceId === INSTANCE ? [...pools.values()] : []),
      get: async (names: readonly AccountId[]) => {
        if (given.later !== undefined) Object.assign(mark, partsOf(given.later))
        return new Map([...pools].filter(([name]) => names.includes(name)))
      },
    },
    usage: { settled: async () => given.settled ?? 100n },
  }
  const store: Pick<Store, 'read' | 'transaction'> = {
    read: (work) => work(reader as unknown as Reader),
    transaction: (work) => work(reader as unknown as Transaction),
  }
  return compare(store, mark as unknown as SalesMark, shared)
}

const AGREES = { result: 'AGREES', reason: null, unknown: false }
const OLDER = { result: 'DATABASE_OLDER', unknown: false }
const COPY = { result: 'MARK_OLDER', unknown: true }

it.each<[string, Case, object]>([
  ['both have the same turn', {}, AGREES],
  [
    'the node continues meanwhile',
    {
      counts: [[A, 10n, 20n, 10n]],
      sold: [[A, 10n]],
      later: { turn: 6, position: 200n, counts: [[A, 20n, 30n, 20n]] },
    },
    AGREES,
  ],
  ['the file lacks two turns', { marks: { own: 7 } }, AGREES],
  ['the file lacks three turns', { marks: { own: 8 } }, COPY],
  ['the database lacks a turn', { marks: { own: 4 } }, OLDER],
  ['usage up to the position of the mark is in the database', { settled: 100n }, AGREES],
  ['usage that was exported is missing', { settled: 99n }, OLDER],
  ['the mark began after the backup of a node that was alone', { marks: {} }, { ...OLDER, unknown: true }],
  ['the mark began after the backup, beside another node', { marks: { other: 9 }, shared: true }, OLDER],
  [
    'the mark began after the backup, which knows another one that is used no more',
    { marks: { other: 9 } },
    { ...OLDER, unknown: true },
  ],
  [
    'the mark began after the backup, as the first of several nodes',
    { marks: {}, shared: true },
    { ...OLDER, unknown: true },
  ],
  ['the mark had to drop accounts', { isComplete: false }, { ...AGREES, unknown: true }],
])('says whose state is older, where %s', async (_name, given, expected) => {
  expect(await compared(given)).toMatchObject(expected)
})

it.each<[string, Case, object]>([
  ['as much', { counts: [[A, 10n, 20n, 10n]], sold: [[A, 10n]] }, { ...AGREES, sold: new Map([[A, 10n]]) }],
  [
    'all that is reserved',
    { counts: [[A, 10n, 20n, 20n]], sold: [[A, 20n]] },
    { ...AGREES, sold: new Map([[A, 20n]]) },
  ],
  ['less than the mark', { counts: [[A, 10n, 20n, 15n]], sold: [[A, 9n]] }, { ...OLDER, sold: new Map([[A, 15n]]) }],
  ['nothing of it', { counts: [[A, 10n, 20n, 15n]] }, { ...OLDER, sold: new Map([[A, 15n]]) }],
  ['more than the mark ever allowed', { counts: [[A, 10n, 20n, 10n]], sold: [[A, 21n]] }, COPY],
  ['more, which other nodes may have sold', { counts: [[A, 10n, 20n, 10n]], sold: [[A, 21n]], shared: true }, AGREES],
])('compares sales where the database has counted %s', async (_name, given, expected) => {
  expect(await compared(given)).toMatchObject(expected)
})

it('finds an account whose id is too long for the mark by its hash', async () => {
  const counts = [[LONG, 10n, 20n, 15n]] as const
  expect(await compared({ counts, sold: [[LONG, 9n]] })).toMatchObject({ ...OLDER, sold: new Map([[LONG, 15n]]) })
  expect(await compared({ counts, sold: [[LONG, 10n]] })).toMatchObject(AGREES)
})

it('knows that more may have been sold where such an account is in no backup, unless it is a limit', async () => {
  const gone = { ...OLDER, sold: new Map() }
  expect(await compared({ counts: [[LONG, 10n, 20n, 15n]] })).toMatchObject({ ...gone, unknown: true })
  expect(await compared({ counts: [[LONG_LIMIT, 10n, 20n, 15n]] })).toMatchObject(gone)
})

it('gives its result in words', async () => {
  expect((await compared({ marks: { own: 4 } })).reason).toContain('backup')
  expect((await compared({ marks: { own: 9 } })).reason).toContain('old copy')
})
