// A journal whose file is damaged: the device comes back without anybody's help, with what proves itself, and without rights
// that it does not have.
import {
  copyFileSync,
  existsSync,
  mkdirSync,
  readFileSync,
  readdirSync,
  renameSync,
  rmSync,
  truncateSync,
  writeFileSync,
} from 'node:fs'
import { join } from 'node:path'
import Database from 'better-sqlite3'
import { describe, expect, it } from 'vitest'
import type { Journal } from '../../../../src/agent/ledger/journal.ts'
import { PAGE_BYTES } from '../../../../src/agent/platform/sqlite/open-database.ts'
import type { SegmentWire } from '../../../../src/protocol/edge/sync.ts'
import {
  IDENTITY,
  OTHER_KEY,
  SEAL,
  STAMP,
  attach,
  entry,
  journalIn,
  payloadOf,
  temporaryDirectory,
} from '../../harness.ts'
import { BEGIN } from '../../sync/fake-time.ts'
import { withEntryTable } from '../../../../sim/device/entry-table.ts'

const A = 'line/i/a/0'
const ENTRIES = 120

const journalAt = (directory: string, changes: Parameters<typeof journalIn>[1] = {}): Promise<Journal> =>
  journalIn(directory, changes)

/** A device with entries 1 to 20 delivered and the others not, closed well. Returns its directory. */
async function device(): Promise<string> {
  const directory = temporaryDirectory()
  const journal = await journalAt(directory)
  await attach(journal, { [A]: 1_000_000n })
  await journal.savePolicy({ instanceId: IDENTITY.instanceIds[0]!, revision: 4, document: 'signed' }, null)
  await journal.append(entries(1, 20), STAMP)
  const { seq } = await journal.seal(SEAL)
  await journal.acknowledge(seq, null, null)
  for (let n = 21; n <= ENTRIES; n += 25) await journal.append(entries(n, 25), STAMP)
  await journal.close()
  return directory
}

const entries = (from: number, count: number) =>
  Array.from({ length: count }, (_, index) => entry(from + index, [{ account: A, amount: 3n }]))

const path = (directory: string): string => join(directory, 'journal.db')

/** The entries that the device delivers after it has attached again. */
async function delivered(journal: Journal): Promise<readonly string[]> {
  const { identity } = await journal.read()
  if (identity === null) await journal.saveIdentity(IDENTITY)
  await journal.attach(9)
  const bodies: string[] = []
  for (;;) {
    const { document, seq } = await journal.seal(SEAL)
    const { undeliveredRange, entries, counters } = payloadOf(document) as SegmentWire
    expect([entries.bodies, counters]).toEqual([[], []])
    await journal.acknowledge(seq, null, null)
    if (undeliveredRange === null) return bodies
    expect(undeliveredRange.epoch).toBe(1)
    bodies.push(...undeliveredRange.entries.bodies)
  }
}

async function expectUsable(directory: string): Promise<{ salvaged: number; lost: number | null }> {
  const journal = await journalAt(directory)
  const snapshot = await journal.read()
  expect(snapshot).toMatchObject({ epoch: 0, lastEntry: 0, grant: null })
  expect(snapshot.accounts.size).toBe(0)
  const [salvage] = snapshot.salvages ?? []
  expect(salvage?.file).toContain('journal.db.damaged-')
  const bodies = await delivered(journal)
  expect(bodies).toHaveLength(salvage!.salvagedEntries)
  // Only what was recorded, each once, and from the first that the cloud does not have.
  expect(bodies.map((body) => (JSON.parse(body) as { n: number }).n)).toEqual(bodies.map((_body, index) => 21 + index))
  await journal.append([entry(1, [])], STAMP)
  await journal.close()
  // Another start finds nothing to salvage.
  const again = await journalAt(directory)
  expect((await again.read()).salvages).toHaveLength(1)
  await again.close()
  return { salvaged: salvage!.salvagedEntries, lost: salvage!.lostEntries }
}

describe('a damaged journal', () => {
  it('is put aside, and the device delivers its proven entries after it has attached again', async () => {
    const directory = await device()
    // The root of a table that the salvage does not need.
    const database = new Database(path(directory))
    const page = database.prepare("SELECT rootpage FROM sqlite_schema WHERE name = 'answer'").pluck().get() as number
    database.close()
    const bytes = readFileSync(path(directory))
    bytes.fill(0x5a, PAGE_BYTES * (page - 1), PAGE_BYTES * page)
    writeFileSync(path(directory), bytes)
    expect(await expectUsable(directory)).toEqual({ salvaged: ENTRIES - 20, lost: 0 })
    const aside = readdirSync(directory).find((name) => name.includes('damaged'))!
    expect(readFileSync(join(directory, aside)).equals(bytes)).toBe(true)
    rmSync(join(directory, aside))
    expect((await (await journalAt(directory)).read()).salvages).toEqual([])
  })

  it('recovers from damage at any page, with identity and rules where they can be read', async () => {
    const whole = readFileSync(path(await device()))
    const found: string[] = []
    // Most of the later pages are slots.
    for (let page = 0; page * PAGE_BYTES < whole.length; page += page < 64 ? 1 : 8) {
      for (const [from, length] of [
        [0, PAGE_BYTES],
        [16, 8],
      ] as const) {
        const directory = temporaryDirectory()
        const bytes = Buffer.from(whole)
        bytes.fill(0xa5, page * PAGE_BYTES + from, page * PAGE_BYTES + from + length)
        writeFileSync(path(directory), bytes)
        const journal = await journalAt(directory)
        const snapshot = await journal.read()
        await journal.close()
        if (snapshot.salvages?.length === 1) {
          const { salvaged, lost } = await expectUsable(directory)
          if (lost !== null) expect(salvaged + lost).toBe(ENTRIES - 20)
          found.push(snapshot.identity === null ? 'nobody' : 'known')
        } else {
          // Not damage that SQLite or the chain sees at a start: then it is the same journal.
          expect(snapshot).toMatchObject({ epoch: 1, lastEntry: ENTRIES })
          expect(snapshot.accounts.get(A)?.used).toBe(BigInt(ENTRIES) * 3n)
        }
      }
    }
    expect(found).toContain('known')
    expect(found.length).toBeGreaterThan(4)
  }, 120_000)

  it.each([
    ['that was cut off', (file: string) => truncateSync(file, PAGE_BYTES * 3 + 100)],
    ['that was cut off within its first page', (file: string) => truncateSync(file, 60)],
    ['that is a text', (file: string) => writeFileSync(file, 'this is a text, and not a short one. '.repeat(300))],
    [
      'that is a directory',
      (file: string) => {
        rmSync(file)
        mkdirSync(file)
      },
    ],
    [
      'that is the database of another program',
      (file: string) => {
        rmSync(file)
        const database = new Database(file)
        database.exec('CREATE TABLE theirs (a)')
        database.close()
      },
    ],
  ])('%s does not keep the device from coming back', async (_what, damage) => {
    const directory = await device()
    damage(path(directory))
    await expectUsable(directory)
  })

  it.each([
    ['before anything was put aside', ['', '-wal'], 'salvaged'],
    ['when its log was put aside', [''], 'salvaged'],
    ['when it was put aside', [], 'salvaged'],
    ['before what takes its place was complete', ['', '-wal'], 'draft'],
  ])('%s is salvaged by the next process', async (_when, stillThere, prepared) => {
    const directory = await device()
    const file = path(directory)
    const bytes = readFileSync(file).fill(0x5a, 0, PAGE_BYTES)
    writeFileSync(file, bytes)
    writeFileSync(log(directory), 'the log of something')
    await (await journalAt(directory)).close()
    const isAside = (name: string): boolean => /damaged-.*Z$/.test(name)
    const aside = join(directory, readdirSync(directory).find(isAside)!)
    renameSync(file, `${file}.${prepared}`)
    if (prepared === 'draft') truncateSync(`${file}.${prepared}`, 10_000)
    // SQLite has removed an invalid log.
    for (const suffix of stillThere) {
      if (!existsSync(`${aside}${suffix}`)) continue
      renameSync(`${aside}${suffix}`, `${file}${suffix}`)
    }
    const { salvaged, lost } = await expectUsable(directory)
    expect({ salvaged, lost }).toEqual({ salvaged: 0, lost: null })
    const asides = readdirSync(directory).filter(isAside)
    expect(asides).toHaveLength(1)
    expect(readFileSync(join(directory, asides[0]!)).equals(bytes)).toBe(true)
    expect(readdirSync(directory).filter((name) => /draft|salvaged|copy/.test(name))).toEqual([])
  })

  it('is named by the time at which it was put aside, and overwrites no earlier one', async () => {
    const directory = await device()
    for (let time = 0; time < 2; time += 1) {
      writeFileSync(path(directory), 'no database, but long enough to be looked at. '.repeat(100))
      await (await journalAt(directory)).close()
    }
    const name = `journal.db.damaged-${new Date(BEGIN).toISOString().replaceAll(/[:.]/g, '-')}`
    expect(readdirSync(directory).filter((each) => each.includes('damaged'))).toEqual([name, `${name}-2`])
  })
})

/** A device whose power is cut: nothing is folded into the database since its journal was opened. Returns its directory. */
async function cutOff({ commits = 4, isNew = false } = {}): Promise<string> {
  const directory = isNew ? temporaryDirectory() : await device()
  const journal = await journalAt(directory)
  if (isNew) {
    await attach(journal, { [A]: 1_000_000n })
    await journal.append(entries(1, 20), STAMP)
    const { seq } = await journal.seal(SEAL)
    await journal.acknowledge(seq, null, null)
  }
  const first = isNew ? 21 : ENTRIES + 1
  for (let commit = 0; commit < commits; commit += 1) await journal.append(entries(first + commit * 10, 10), STAMP)
  const after = temporaryDirectory()
  for (const name of readdirSync(directory)) copyFileSync(join(directory, name), join(after, name))
  await journal.close()
  return after
}

const log = (directory: string): string => `${path(directory)}-wal`

/** A state that the device really was in: as many entries as it counts, each with its charge. */
async function expectEarlierState(directory: string, most: number, least = 0): Promise<number> {
  const journal = await journalAt(directory)
  const { lastEntry, accounts, salvages, epoch } = await journal.read()
  expect(salvages).toEqual([])
  expect(epoch).toBe(1)
  expect(lastEntry).toBeGreaterThanOrEqual(least)
  expect(lastEntry).toBeLessThanOrEqual(most)
  expect(accounts.get(A)?.used).toBe(BigInt(lastEntry) * 3n)
  await journal.append([entry(lastEntry + 1, [{ account: A, amount: 3n }])], STAMP)
  await journal.seal(SEAL)
  await journal.close()
  return lastEntry
}

describe('a log', () => {
  it('that is cut off or torn at any place gives the entries before that place', async () => {
    const template = await cutOff({ commits: 12 })
    const whole = readFileSync(log(template))
    const seen = new Set<number>()
    for (let cut = 0; cut <= 8; cut += 1) {
      for (const damage of ['cut', 'zeros', 'flipped'] as const) {
        const directory = temporaryDirectory()
        for (const name of readdirSync(template)) copyFileSync(join(template, name), join(directory, name))
        const at = Math.floor((whole.length * cut) / 8)
        const bytes = Buffer.from(damage === 'cut' ? whole.subarray(0, at) : whole)
        if (damage === 'zeros') bytes.fill(0, at)
        if (damage === 'flipped' && at < bytes.length) bytes[at] = bytes[at]! ^ 0x10
        writeFileSync(log(directory), bytes)
        seen.add(await expectEarlierState(directory, ENTRIES + 120, ENTRIES))
      }
    }
    expect(seen).toContain(ENTRIES)
    expect(seen).toContain(ENTRIES + 120)
    expect(seen.size).toBeGreaterThan(4)
  }, 60_000)

  it('that is gone leaves the state that was folded into the database', async () => {
    const directory = await cutOff()
    rmSync(log(directory))
    await expectEarlierState(directory, ENTRIES, ENTRIES)
  })

  it('ignores the file of another program', async () => {
    const directory = await cutOff()
    writeFileSync(log(directory), 'this is a text, and not a short one. '.repeat(3_000))
    await expectEarlierState(directory, ENTRIES, ENTRIES)
  })

  it.each([
    ['of another device', { commits: 30, isNew: true }],
    ['of another time of the same device', { commits: 9 }],
  ])('%s never makes a ledger of two halves', async (_what, other) => {
    const directory = await device()
    const foreign = await cutOff(other)
    const journal = await journalAt(directory)
    await journal.append(entries(ENTRIES + 1, 50), STAMP)
    await journal.close()
    copyFileSync(log(foreign), log(directory))
    const opened = await journalAt(directory)
    const { salvages, lastEntry, accounts } = await opened.read()
    if (salvages?.length === 1) {
      await opened.close()
      await expectUsable(directory)
      return
    }
    // The whole of one of the two.
    expect(accounts.get(A)?.used ?? 0n).toBe(BigInt(lastEntry) * 3n)
    await opened.append([entry(lastEntry + 1, [])], STAMP)
    for (let seen = -1; ;) {
      const { document, seq } = await opened.seal(SEAL)
      const { entries } = payloadOf(document) as SegmentWire
      await opened.acknowledge(seq, null, null)
      if (entries.bodies.length === 0) break
      for (const body of entries.bodies) {
        const { n } = JSON.parse(body) as { n: number }
        expect(n).toBeGreaterThan(seen)
        seen = n
      }
    }
  })

  it('with a gap in its entries is damage if the cloud lacks entries', async () => {
    const directory = await device()
    const database = new Database(path(directory))
    withEntryTable(database, () => database.exec('DELETE FROM entry WHERE n = 60'))
    database.close()
    expect(await expectUsable(directory)).toEqual({ salvaged: 0, lost: ENTRIES - 20 })
  })
})

describe('an empty database', () => {
  it('beside files that only a used database has is damage of unknown extent', async () => {
    const directory = await device()
    expect(existsSync(`${path(directory)}-disk-reserve`)).toBe(true)
    writeFileSync(path(directory), '')
    expect(await expectUsable(directory)).toEqual({ salvaged: 0, lost: null })
  })

  it('beside the key of the device is damage too', async () => {
    const directory = await device()
    const key = join(directory, 'device.key')
    writeFileSync(key, 'a key')
    rmSync(`${path(directory)}-disk-reserve`)
    writeFileSync(path(directory), '')
    const journal = await journalAt(directory, { later: [key] })
    expect((await journal.read()).salvages).toMatchObject([{ salvagedEntries: 0, lostEntries: null }])
  })

  it('beside a log is rebuilt from the log as far as possible', async () => {
    const directory = await cutOff({ isNew: true, commits: 6 })
    writeFileSync(path(directory), '')
    expect(await expectUsable(directory)).toEqual({ salvaged: 60, lost: 0 })
  })

  it('that is not even there is rebuilt from its log as well', async () => {
    const directory = await cutOff({ isNew: true, commits: 6 })
    rmSync(path(directory))
    expect(await expectUsable(directory)).toEqual({ salvaged: 60, lost: 0 })
  })

  it('beside a log of only the latest pages counts the other entries as lost', async () => {
    const directory = await cutOff({ commits: 3 })
    writeFileSync(path(directory), '')
    const { salvaged, lost } = await expectUsable(directory)
    expect(salvaged).toBe(0)
    expect([null, ENTRIES + 30 - 20]).toContain(lost)
  })

  it('without any other files is a new database', async () => {
    const directory = temporaryDirectory()
    writeFileSync(path(directory), '')
    expect((await (await journalAt(directory)).read()).salvages).toEqual([])
    const wiped = await device()
    rmSync(path(wiped))
    expect((await (await journalAt(wiped)).read()).salvages).toEqual([])
  })
})

describe('a journal with one wrong bit in a key that the device trusts', () => {
  async function damaged(...others: readonly string[]): Promise<string> {
    const directory = await device()
    const database = new Database(path(directory))
    const trustedKeys = [OTHER_KEY.replace('Ed25519', 'Ed2551;'), ...others]
    database.prepare('UPDATE identity SET document = ?').run(JSON.stringify({ ...IDENTITY, trustedKeys }))
    database.close()
    return directory
  }

  it('is salvaged with its other keys', async () => {
    const journal = await journalAt(await damaged(...IDENTITY.trustedKeys))
    const { identity, salvages } = await journal.read()
    expect(identity).toEqual(IDENTITY)
    expect(salvages).toHaveLength(1)
    await journal.close()
  })

  it('is salvaged without its identity if it has no other key', async () => {
    const directory = await damaged()
    const journal = await journalAt(directory)
    expect((await journal.read()).identity).toBeNull()
    await journal.close()
    expect(await expectUsable(directory)).toMatchObject({ salvaged: ENTRIES - 20 })
  })
})
