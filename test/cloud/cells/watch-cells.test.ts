import { beforeEach, describe, expect, it } from 'vitest'
import { CellStore } from '../../../src/cloud/cells/cell-store.ts'
import { CellWatch, type WatchedCell } from '../../../src/cloud/cells/watch-cells.ts'
import type { Keyring } from '../../../src/cloud/devices/keyring.ts'
import type { Store } from '../../../src/cloud/storage/store.ts'
import { CodedError } from '../../../src/protocol/errors.ts'

const AWAY = new CodedError('DATABASE_UNREACHABLE', 'away')

class FakeCell implements WatchedCell {
  readonly store: CellStore
  readonly name: string
  readonly seen: string[] = []
  failure: Error | null = null
  isStarted = false
  readonly clock = { isRecorded: true }
  signingKey = 'first'
  readonly metrics = {
    cell: (isUp: boolean, isBehind: boolean) =>
      void this.seen.push(`${isUp ? 'up' : 'away'}${isBehind ? ', behind' : ''}`),
  }
  bumped = 0
  claimed: () => string = () => 'second'

  constructor(name: string) {
    this.name = name
    this.store = new CellStore(name)
  }

  readonly #run = async (work: (tx: never) => Promise<unknown>): Promise<unknown> => {
    if (this.failure !== null) throw this.failure
    const none = async (): Promise<readonly []> => []
    const bump = async (): Promise<void> => void (this.bumped += 1)
    return work({
      cell: { get: async () => undefined },
      ...{ rateTables: { names: none }, configuration: { list: none }, keys: { all: none } },
      policyRevisions: { lockAll: none, bumpAll: bump },
      outbox: { appendPolicies: none },
    } as never)
  }

  async start(): Promise<void> {
    if (this.failure !== null) throw this.failure
    this.store.attach({ read: this.#run, transaction: this.#run, onOutbox: () => () => undefined } as unknown as Store)
    this.isStarted = true
  }

  async claimSigningKey(): Promise<void> {
    this.signingKey = this.claimed()
  }
}

describe('a watch over cells', () => {
  let north: FakeCell
  let south: FakeCell
  let lines: string[]
  let watch: CellWatch
  let watchLater: () => CellWatch
  const signer = { keyId: 'first' }
  const probe = () => Promise.all([north, south].map((cell) => watch.probe(cell)))

  beforeEach(async () => {
    ;[north, south, lines] = [new FakeCell('north'), new FakeCell('south'), []]
    signer.keyId = 'first'
    const log = {
      info: ({ cell }: Record<string, unknown>, message: string) => void lines.push(`info ${String(cell)}: ${message}`),
      warn: ({ cell }: Record<string, unknown>, message: string) => void lines.push(`warn ${String(cell)}: ${message}`),
    }
    const keys = { signer } as unknown as Keyring
    const watching = () => new CellWatch({ cells: [north, south], keys, now: () => 1, log })
    await north.start()
    await south.start()
    watch = watching()
    watchLater = watching
  })

  it('starts a cell as soon as its database responds, and logs a problem once', async () => {
    south.failure = AWAY
    for (let round = 0; round < 3; round += 1) await probe()
    expect(watch.conditions).toEqual(['CELL_UNREACHABLE south'])
    expect([north.seen.at(-1), south.seen.at(-1)]).toEqual(['up', 'away'])
    south.failure = null
    await probe()
    expect([watch.conditions, south.seen.at(-1)]).toEqual([[], 'up'])
    south.clock.isRecorded = false
    expect(watch.conditions).toEqual(['CELL_UNWRITABLE south'])
    expect(lines).toEqual([
      'warn south: the database of the cell does not work',
      'warn south: the database of the cell works again',
    ])
  })

  it('logs the end of a problem that a cell had at the start of the cloud', async () => {
    south.isStarted = false
    watch = watchLater()
    await probe()
    expect(lines).toEqual([
      'warn south: the database of the cell does not work',
      'warn south: the database of the cell works again',
    ])
  })

  it('starts a cell while another one does not respond', async () => {
    const starts = Promise.withResolvers<undefined>()
    south.start = () => starts.promise
    const probing = watch.probe(south)
    await watch.probe(north)
    expect(north.seen).toEqual(['up'])
    starts.resolve(undefined)
    await probing
  })

  it('logs a cell that refuses the node', async () => {
    south.failure = AWAY
    await probe()
    south.failure = new CodedError('CELL_DIFFERS', 'another cell')
    await probe()
    await probe()
    expect(lines).toHaveLength(2)
  })

  it('shows which cell may lack changes', async () => {
    await probe()
    south.failure = AWAY
    await watch.copy()
    await watch.copy()
    expect(south.seen.at(-1)).toBe('up, behind')
    await probe()
    expect(watch.conditions).toEqual(['CELL_UNREACHABLE south', 'CELL_BEHIND south'])
    expect(south.seen.at(-1)).toBe('away, behind')
    south.failure = null
    await probe()
    await watch.copy()
    expect(watch.conditions).toEqual([])
    expect(lines.filter((line) => line.includes('copy'))).toHaveLength(2)
  })

  it('informs devices of a cell that was unreachable about another signing key, once', async () => {
    await probe()
    signer.keyId = 'second'
    await watch.copy()
    await watch.copy()
    expect([south.signingKey, south.bumped]).toEqual(['second', 1])
  })

  it('does not change the rules if the key in the file is not in use yet', async () => {
    await probe()
    south.claimed = () => 'first'
    signer.keyId = 'second'
    await watch.copy()
    expect([south.signingKey, south.bumped]).toEqual(['first', 0])
  })
})
