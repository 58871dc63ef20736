// A journal whose file is damaged: the device comes back without anybody's help, with what proves itself, and without rights
// that it does not have.
import { mkdirSync, readFileSync, readdirSync, rmSync, truncateSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import Database from 'better-sqlite3'
import { describe, expect, it } from 'vitest'
import type { Journal } from '../../../src/agent/app/journal.ts'
import type { SegmentWire } from '../../../src/protocol/edge/sync.ts'
import { IDENTITY, SEAL, STAMP, attach, entry, journalIn, payloadOf, temporaryDirectory } from '../harness.ts'
import { BEGIN } from '../link/fake-time.ts'

const A = 'line/i/a/0'
const ENTRIES = 120

/** A device with entries 1 to 20 delivered and the others not, closed well. Returns its directory. */
async function device(): Promise<string> {
  const directory = temporaryDirectory()
  const journal = await journalIn(directory)
  await attach(journal, { [A]: 1_000_000n })
  await journal.savePolicy({ instanceId: IDENTITY.instanceIds[0]!, revision: 4, document: 'signed' }, null)
  const append = async (from: number, to: number): Promise<void> => {
    for (let n = from; n <= to; n += 1) await journal.append([entry(n, [{ account: A, amount: 3n }])], STAMP)
  }
  await append(1, 20)
  const { seq } = await journal.seal(SEAL)
  await journal.acknowledge(seq, null, null)
  await append(21, ENTRIES)
  await journal.close()
  return directory
}

const path = (directory: string): string => join(directory, 'journal.db')

/** What goes up once the device has attached anew. */
async function delivered(journal: Journal): Promise<readonly string[]> {
  const { identity } = await journal.read()
  if (identity === null) await journal.saveIdentity(IDENTITY)
  await journal.attach(9)
  const bodies: string[] = []
  for (;;) {
    const { document, seq } = await journal.seal(SEAL)
    const { arrears, entries, counters } = payloadOf(document) as SegmentWire
    expect([entries.bodies, counters]).toEqual([[], []])
    await journal.acknowledge(seq, null, null)
    if (arrears === null) return bodies
    expect(arrears.incarnation).toBe(1)
    bodies.push(...arrears.entries.bodies)
  }
}

async function expectUsable(directory: string): Promise<{ salvaged: number; lost: number | null }> {
  const journal = await journalIn(directory)
  const snapshot = await journal.read()
  expect(snapshot).toMatchObject({ incarnation: 0, lastEntry: 0, grant: null })
  expect(snapshot.accounts.size).toBe(0)
  const [rescue] = snapshot.rescues ?? []
  expect(rescue?.file).toContain('journal.db.damaged-')
  const bodies = await delivered(journal)
  expect(bodies).toHaveLength(rescue!.salvagedEntries)
  // Only what was recorded, each once, and from the first that the cloud does not have.
  expect(bodies.map((body) => (JSON.parse(body) as { n: number }).n)).toEqual(bodies.map((_body, index) => 21 + index))
  await journal.append([entry(1, [])], STAMP)
  await journal.close()
  // Another start finds nothing to rescue.
  const again = await journalIn(directory)
  expect((await again.read()).rescues).toHaveLength(1)
  await again.close()
  return { salvaged: rescue!.salvagedEntries, lost: rescue!.lostEntries }
}

describe('a damaged journal', () => {
  it('is put aside, and what can be proven of it goes up when the device has attached anew', async () => {
    const directory = await device()
    // The root of a table that the salvage does not need.
    const database = new Database(path(directory))
    const page = database.prepare("SELECT rootpage FROM sqlite_schema WHERE name = 'answer'").pluck().get() as number
    database.close()
    const bytes = readFileSync(path(directory))
    bytes.fill(0x5a, 4096 * (page - 1), 4096 * page)
    writeFileSync(path(directory), bytes)
    expect(await expectUsable(directory)).toEqual({ salvaged: ENTRIES - 20, lost: 0 })
    const aside = readdirSync(directory).find((name) => name.includes('damaged'))!
    expect(readFileSync(join(directory, aside)).equals(bytes)).toBe(true)
    rmSync(join(directory, aside))
    expect((await (await journalIn(directory)).read()).rescues).toEqual([])
  })

  it('comes back from damage at any page, with identity and rules where they can be read', async () => {
    const whole = readFileSync(path(await device()))
    const found: string[] = []
    for (let page = 0; page * 4096 < whole.length; page += 1) {
      for (const [from, length] of [
        [0, 4096],
        [16, 8],
      ] as const) {
        const directory = temporaryDirectory()
        const bytes = Buffer.from(whole)
        bytes.fill(0xa5, page * 4096 + from, page * 4096 + from + length)
        writeFileSync(path(directory), bytes)
        const journal = await journalIn(directory)
        const snapshot = await journal.read()
        await journal.close()
        if (snapshot.rescues?.length === 1) {
          const { salvaged, lost } = await expectUsable(directory)
          if (lost !== null) expect(salvaged + lost).toBe(ENTRIES - 20)
          found.push(snapshot.identity === null ? 'nobody' : 'known')
        } else {
          // Not damage that SQLite or the chain sees at a start: then it is the same journal.
          expect(snapshot).toMatchObject({ incarnation: 1, lastEntry: ENTRIES })
          expect(snapshot.accounts.get(A)?.used).toBe(BigInt(ENTRIES) * 3n)
        }
      }
    }
    expect(found).toContain('known')
    expect(found.length).toBeGreaterThan(4)
  }, 120_000)

  it.each([
    ['that was cut off', (file: string) => truncateSync(file, 4096 * 3 + 100)],
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

  it('that is empty, or has lost its log, is no reason to stop', async () => {
    const directory = await device()
    writeFileSync(path(directory), '')
    const journal = await journalIn(directory)
    expect(await journal.read()).toMatchObject({ identity: null, incarnation: 0 })
  })

  it('is told by the time of the wall clock, and never overwrites one that was put aside before', async () => {
    const directory = await device()
    for (let time = 0; time < 2; time += 1) {
      writeFileSync(path(directory), 'no database, but long enough to be looked at. '.repeat(100))
      await (await journalIn(directory, { now: () => BEGIN })).close()
    }
    expect(readdirSync(directory).filter((name) => name.includes('damaged'))).toHaveLength(2)
  })
})
