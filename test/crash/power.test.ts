// Power cuts: the model of the disk on traces written by hand, and a share of what `npm run crash -- power` does.
import { mkdirSync, readdirSync, readFileSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import { describe, expect, it } from 'vitest'
import { cutPower } from '../../crash/power.ts'
import { Disk, type Fate } from '../../crash/power/disk.ts'
import { moments } from '../../crash/trace/calls.ts'
import { seeded } from '../../src/demo/random.ts'
import { temporaryDirectory } from '../agent/harness.ts'
import { needsStrace } from '../support/strace.ts'

const LIMIT_MS = 150_000

async function diskAfter(...lines: readonly string[]): Promise<Disk> {
  const log = join(temporaryDirectory(), 'log')
  writeFileSync(log, lines.map((line) => `7 ${line}`).join('\n'))
  const disk = new Disk('/root')
  for await (const moment of moments(log)) disk.take(moment)
  return disk
}

/** Files of an image, with their content. */
function image(disk: Disk, fate: Fate, seed = 1): Record<string, string> {
  const into = join(temporaryDirectory(), 'image')
  mkdirSync(into)
  disk.writeImage(into, fate, seeded(seed))
  const files = readdirSync(into, { recursive: true, withFileTypes: true }).filter((entry) => entry.isFile())
  return Object.fromEntries(files.map(({ name, parentPath }) => [name, readFileSync(join(parentPath, name), 'latin1')]))
}

const create = 'openat(AT_FDCWD</>, "/root/a", O_RDWR|O_CREAT, 0600) = 3</root/a>'
const write = 'pwrite64(3</root/a>, "one", 3, 0) = 3'
const flushFile = 'fsync(3</root/a>) = 0'
const flushDirectory = 'fsync(4</root>) = 0'

describe('the disk', () => {
  it('keeps for sure what was flushed with the name of its file', async () => {
    const disk = await diskAfter(create, write, flushFile, flushDirectory)
    expect(disk.atRisk).toBe(0)
    expect(image(disk, 'dropped')).toEqual({ a: 'one' })
  })

  it.each([
    ['a file whose directory was not flushed', [create, write, flushFile], {}, { a: 'one' }],
    ['a write after the flush', [create, flushFile, flushDirectory, write], { a: '' }, { a: 'one' }],
    ['a failed flush', [create, write, flushDirectory, 'fsync(3</root/a>) = -1 EIO (x)'], { a: '' }, { a: 'one' }],
    [
      'a file in a directory that was not flushed itself',
      [
        'mkdir("/root/d", 0700) = 0',
        'openat(AT_FDCWD</>, "/root/d/b", O_RDWR|O_CREAT, 0600) = 3</root/d/b>',
        'fsync(3</root/d/b>) = 0',
        'fsync(4</root/d>) = 0',
      ],
      {},
      { b: '' },
    ],
    ['a name that was given up', [create, write, flushFile, flushDirectory, 'unlink("/root/a") = 0'], { a: 'one' }, {}],
    [
      'a new name',
      [create, write, flushFile, flushDirectory, 'rename("/root/a", "/root/b") = 0'],
      { a: 'one' },
      { b: 'one' },
    ],
    [
      'a shortened file',
      [create, write, flushFile, flushDirectory, 'ftruncate(3</root/a>, 1) = 0'],
      { a: 'one' },
      { a: 'o' },
    ],
  ])('may lose, or keep, %s', async (_what, lines, dropped, kept) => {
    const disk = await diskAfter(...lines)
    expect(disk.atRisk).toBeGreaterThan(0)
    expect(image(disk, 'dropped')).toEqual(dropped)
    expect(image(disk, 'kept')).toEqual(kept)
  })

  it('covers by a flush only what had ended before the flush began', async () => {
    const disk = await diskAfter(
      create,
      flushDirectory,
      'fsync(3</root/a> <unfinished ...>',
      `8 ${write}`.slice(2),
      '<... fsync resumed>) = 0',
    )
    expect(image(disk, 'dropped')).toEqual({ a: '' })
  })

  it('tears what was not flushed at sectors, and keeps any of them', async () => {
    const text = 'x'.repeat(4096)
    const disk = await diskAfter(create, flushDirectory, `pwrite64(3</root/a>, "${text}", 4096, 0) = 4096`)
    const sectors = new Set<string>()
    for (let seed = 1; seed <= 40; seed += 1) {
      const { a = '' } = image(disk, 'torn', seed)
      expect(a.length % 512).toBe(0)
      sectors.add(a.replaceAll(/x{512}/g, 'x').replaceAll('\0'.repeat(512), '-'))
    }
    expect(sectors.size).toBeGreaterThan(20)
    for (const pattern of sectors) expect(pattern).toMatch(/^[x-]*$/)
  })

  it('takes nothing from calls at whose start the program was killed', async () => {
    const killed = [
      'pwrite64(3</root/a>, 0x7f01, 3, 0 <unfinished ...>',
      '<... pwrite64 resumed>) = ?',
      '???( <unfinished ...>',
    ]
    const disk = await diskAfter(create, flushFile, flushDirectory, ...killed)
    expect(image(disk, 'kept')).toEqual({ a: '' })
  })

  it('is refused a call that it does not know', async () => {
    await expect(diskAfter(create, 'fallocate(3</root/a>, 0, 0, 10) = 0')).rejects.toThrow('not modelled')
  })

  it('notices when a trace does not explain what the program left', async () => {
    const disk = await diskAfter(create, write)
    const left = temporaryDirectory()
    writeFileSync(join(left, 'a'), 'two')
    expect(() => disk.endLife(left)).toThrow('does not explain')
    writeFileSync(join(left, 'a'), 'one')
    disk.endLife(left)
  })
})

describe('a power cut', () => {
  const run = (preload: readonly URL[]) =>
    cutPower({
      directory: temporaryDirectory(),
      ...{ decisions: 160, cuts: 60, seed: 5 },
      preload,
      onProgress: () => undefined,
    })

  it(
    'at any moment leaves every answer, every segment under way and every acknowledgement on the disk',
    { timeout: LIMIT_MS },
    async (context) => {
      needsStrace(context)
      for (const { failures, cuts, atRisk, owed } of await run([])) {
        expect(failures).toEqual([])
        expect(cuts).toBe(60)
        expect(atRisk).toBeGreaterThan(30)
        expect(owed).toBeGreaterThan(60)
      }
    },
  )

  it('is survived by neither side without a flush in each commit', { timeout: LIMIT_MS }, async (context) => {
    needsStrace(context)
    const reports = await run([new URL('../../crash/defects/unsynced-commits.ts', import.meta.url)])
    // Many of the cuts fall before anything has left.
    for (const { failures } of reports) expect(failures.length).toBeGreaterThan(2)
  })
})
