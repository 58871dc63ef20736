// Archives of the usage record of any store: nothing is lost, and nothing comes twice, wherever a run ends.
import { existsSync, mkdtempSync, readdirSync, readFileSync, renameSync, rmSync, writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { afterEach, beforeEach, describe, expect, it } from 'vitest'
import { zstd } from '../../../src/cloud/platform/archive/compression.ts'
import { archiveDirectory } from '../../../src/cloud/platform/archive/directory.ts'
import type { Store } from '../../../src/cloud/storage/store.ts'
import { replayAfter } from '../../../src/cloud/events/administer-sinks.ts'
import { newEpoch } from '../../../src/cloud/devices/epochs.ts'
import { type ArchiveUsageDeps, archiveUsage } from '../../../src/cloud/usage/archive/archive-usage.ts'
import { ARCHIVER_SILENT_MS_MAX } from '../../../src/cloud/usage/archive/claim.ts'
import { manifestName, sha256 } from '../../../src/cloud/usage/archive/manifest.ts'
import type { ArchivePlace } from '../../../src/cloud/usage/archive/place.ts'
import { exportArchive, verifyArchive } from '../../../src/cloud/usage/archive/read-archive.ts'
import { exportUsage } from '../../../src/cloud/usage/export-usage.ts'
import { decimal } from '../../../src/core/pricing/amount.ts'
import { CodedError } from '../../../src/protocol/errors.ts'
import type { UsageFormat } from '../../../src/protocol/service/usage-export.ts'
import { B, DEVICE, delivery } from '../storage/deliveries.suite.ts'
import { device, usage } from '../storage/suite.ts'

const EVER = 2 ** 52

/** @param open an empty store */
export function archiveSuite(name: string, open: () => Promise<Store>): void {
  describe(`the archive of the usage of ${name}`, () => {
    let store: Store
    let folder: string
    let time: number
    let runs: number
    beforeEach(async () => {
      ;[time, runs] = [1_000_000, 0]
      folder = mkdtempSync(join(tmpdir(), 'tallygate-archive-'))
      store = await open()
      await store.transaction(async (tx) => {
        await tx.edge.devices.insert(device(DEVICE))
        await tx.edge.epochs.insert(newEpoch(DEVICE, 1, { now: 1, present: 1 }))
      })
    })
    afterEach(async () => {
      await store.close()
      rmSync(folder, { recursive: true, force: true })
    })

    const deps = (change: Partial<ArchiveUsageDeps> = {}): ArchiveUsageDeps => ({
      store,
      place: archiveDirectory(folder),
      compression: zstd,
      tenantId: 'Zoë & Co',
      holder: `run ${(runs += 1)}`,
      now: () => time,
      giveWay: () => undefined,
      isStopping: () => false,
      onArchive: () => undefined,
      limits: { records: 8, characters: 2_000, piece: 2 },
      ...change,
    })
    const textOf = async (pieces: AsyncIterable<string>): Promise<string> => {
      let text = ''
      for await (const piece of pieces) text += piece
      return text
    }
    const everything = { instanceId: null, from: null, to: null }
    const inStore = async (after: bigint | null = null, format: UsageFormat = 'ndjson') => {
      const { next, pieces } = await exportUsage(
        { store, giveWay: () => undefined },
        { ...everything, after, format, tenantId: 'Zoë & Co' },
      )
      return { next, text: await textOf(pieces) }
    }
    const inArchive = async (after = 0n, format: UsageFormat = 'ndjson', change = {}) => {
      const place = archiveDirectory(folder)
      const { next, pieces } = await exportArchive(
        { place, compression: zstd },
        { ...everything, after, format, ...change },
      )
      return { next, text: await textOf(pieces) }
    }
    const verify = () => verifyArchive({ place: archiveDirectory(folder), compression: zstd })
    const archivedUpTo = () => store.read(async (reader) => (await reader.usageArchives.last())?.upTo ?? 0n)
    const rowsLeft = async () =>
      (await store.read((reader) => reader.usage.count({ ...everything, after: 0n, upTo: 2n ** 62n }))).records

    /** Records of all kinds, at the write times 10, 20, 30 …, in groups. */
    const fill = async (groups: number): Promise<void> => {
      let [first, hash] = [1, undefined as string | undefined]
      for (let group = 1; group <= groups; group += 1) {
        const writeTime = group * 10
        const some = delivery(first, [{ tokens: 3n }, { instanceId: B }, { at: writeTime }], {
          ...(hash === undefined ? {} : { previousHash: hash }),
        })
        ;[first, hash] = [first + 3, some.entries.at(-1)!.hash]
        await store.transaction(async (tx) => {
          await tx.usage.append([
            usage(group, { writeTime, tokens: 9_007_199_254_740_993_123n, rate: decimal('0.000000000000000001') }),
            usage(group, {
              writeTime,
              item: '=1+1,"ü"\n,"rate":1\u2028',
              metaData: '{"b":1.00,"a":[{"cursor":"7","rate":2}],"1":"}\u2028\u2029"}',
              count: decimal('12345678901234567890.000000000123'),
            }),
          ])
          await tx.usage.deliver({ ...some, inputs: { ...some.inputs, writeTime } })
        })
      }
    }

    it('returns the lines of the export before it, byte for byte, in both formats', async () => {
      await fill(6)
      const [before, csv] = [await inStore(), await inStore(null, 'csv')]
      await archiveUsage(deps(), EVER)
      expect(await inArchive()).toEqual(before)
      expect((await inArchive(0n, 'csv')).text).toBe(csv.text)
      expect(await rowsLeft()).toBe(0)
      expect(await inStore(before.next)).toEqual({ next: before.next, text: '' })
      const findings = await verify()
      expect(findings).toMatchObject({ records: 30, problems: [], continues: null, range: { after: 0n } })
      expect(findings.archives).toBeGreaterThan(2)
      expect(findings.files).toBeGreaterThan(findings.archives)
    })

    it('gives the same export together with the remaining records, from any cursor and for any time range', async () => {
      await fill(6)
      const before = await inStore()
      const lines = before.text.split('\n').slice(0, -1)
      const cursors = lines.map((line) => BigInt((JSON.parse(line) as { cursor: string }).cursor))
      for (const until of [5, 20, 21, 45, EVER]) {
        await archiveUsage(deps(), until)
        const end = await archivedUpTo()
        const rest = await inStore(end)
        expect(rest.next).toBe(before.next)
        const archived = end === 0n ? '' : (await inArchive()).text
        expect(archived + rest.text).toBe(before.text)
        const written = lines.filter((_, index) => cursors[index]! <= end)
        expect(written.every((line) => (JSON.parse(line) as { writeTime: number }).writeTime < until)).toBe(true)
        for (const [index, after] of cursors.entries()) {
          if (after >= end) continue
          expect((await inArchive(after)).text + rest.text).toBe(`${lines.slice(index + 1).join('\n')}\n`)
          await expect(inStore(after)).rejects.toMatchObject({ code: 'USAGE_ARCHIVED' })
        }
      }
      const ofB = lines.filter((line) => line.includes(`"instanceId":"${B}"`))
      expect((await inArchive(0n, 'ndjson', { instanceId: B })).text).toBe(`${ofB.join('\n')}\n`)
      const late = lines.filter((line) => (JSON.parse(line) as { usageTime: number }).usageTime >= 40)
      expect((await inArchive(0n, 'ndjson', { from: 40 })).text).toBe(`${late.join('\n')}\n`)
    })

    it('exports usage since a time only if no archive can contain it', async () => {
      await fill(3)
      await archiveUsage(deps(), 25)
      const since = (from: number) =>
        exportUsage(
          { store, giveWay: () => undefined },
          { ...everything, from, after: null, format: 'ndjson', tenantId: 't' },
        )
      await expect(since(20)).rejects.toMatchObject({ code: 'USAGE_ARCHIVED' })
      expect((await textOf((await since(21)).pieces)).split('\n')).toHaveLength(2)
      await expect(inStore()).rejects.toThrow(folder)
    })

    it('refuses a time range with archived usage, even if the clock was ahead', async () => {
      const day = 86_400_000
      const [slightly, far] = [day + 10, 50 * 365 * day]
      const times = [20, slightly, far, far + 7]
      await store.transaction((tx) => tx.usage.append(times.map((usageTime) => usage(1, { usageTime, writeTime: 10 }))))
      await archiveUsage(deps(), EVER)
      const answers = async (from: number, to: number | null): Promise<boolean> => {
        const range = { ...everything, from, to, after: null, format: 'ndjson', tenantId: 't' } as const
        const found = exportUsage({ store, giveWay: () => undefined }, range).then(({ pieces }) => textOf(pieces))
        const code = await found.then(
          () => null,
          (error: unknown) => (error as CodedError).code,
        )
        expect([null, 'USAGE_ARCHIVED']).toContain(code)
        return code === null
      }
      expect(await answers(slightly, null)).toBe(false)
      expect(await answers(slightly, slightly + 1)).toBe(false)
      expect(await answers(slightly + 1, null)).toBe(false)
      expect(await answers(slightly + 1, far)).toBe(true)
      expect(await answers(slightly + 1, far + 1)).toBe(false)
      expect(await answers(far + 7, far + 8)).toBe(false)
      expect(await answers(far + 8, null)).toBe(true)
    })

    it('aborts a running export instead of omitting records', async () => {
      await store.transaction((tx) => tx.usage.append(Array.from({ length: 1_200 }, (_, n) => usage(n))))
      const { pieces } = await exportUsage(
        { store, giveWay: () => undefined },
        { ...everything, after: null, format: 'ndjson', tenantId: 't' },
      )
      const reading = pieces[Symbol.asyncIterator]()
      await reading.next()
      await archiveUsage(deps({ limits: { records: 10_000, characters: 1e6, piece: 500 } }), EVER)
      await expect(reading.next()).rejects.toMatchObject({ code: 'USAGE_ARCHIVED' })
    })

    it('gives later records later cursors, and continues after the last archive', async () => {
      await fill(1)
      await archiveUsage(deps(), EVER)
      const { upTo } = (await verify()).range!
      expect(await store.transaction((tx) => tx.usage.settled())).toBe(upTo)
      await store.transaction((tx) => tx.usage.append([usage(99)]))
      expect(await store.transaction((tx) => tx.usage.settled())).toBeGreaterThan(upTo)
      const moved = archiveDirectory(join(folder, 'new'))
      await archiveUsage(deps({ place: moved }), EVER)
      const findings = await verifyArchive({ place: moved, compression: zstd })
      expect(findings).toMatchObject({ archives: 1, records: 1, problems: [] })
      expect(findings.range!.after).toBe(upTo)
      expect(readdirSync(folder)).toContain(findings.continues)
    })

    it('deletes at most 100 deliveries in a transaction', async () => {
      await fill(130)
      const left: number[] = []
      const transaction: Store['transaction'] = async (work) => {
        const result = await store.transaction(work)
        left.push(await rowsLeft())
        return result
      }
      const limits = { records: 10_000, characters: 1e7, piece: 500 }
      await archiveUsage(deps({ limits, store: { read: (work) => store.read(work), transaction } }), EVER)
      const steps = [...new Set(left)]
      // Each delivery has three records, and comes after a row with two.
      expect(steps).toEqual([650, 148, 0])
    })

    it('deletes all rows, at most 1,000 in a transaction', async () => {
      await store.transaction((tx) =>
        tx.usage.append(Array.from({ length: 2_500 }, (_, n) => usage(n, { instanceId: `${n}` }))),
      )
      const left: number[] = []
      const transaction: Store['transaction'] = async (work) => {
        const result = await store.transaction(work)
        left.push(await rowsLeft())
        return result
      }
      const limits = { records: 10_000, characters: 1e7, piece: 500 }
      await archiveUsage(deps({ limits, store: { read: (work) => store.read(work), transaction } }), EVER)
      expect([...new Set(left)]).toEqual([2_500, 1_500, 500, 0])
    })

    it('keeps the proof that an entry was billed', async () => {
      const first = delivery(1, [{}, {}, {}])
      const second = delivery(4, [{}, {}], { previousHash: first.entries.at(-1)!.hash })
      const branch = delivery(2, [{ tokens: 5n }, { tokens: 6n }], { branch: true })
      const third = delivery(6, [{}], { previousHash: second.entries.at(-1)!.hash })
      const write = (each: typeof first) => store.transaction((tx) => tx.usage.deliver(each))
      for (const each of [first, second, branch]) await write(each)
      await archiveUsage(deps(), EVER)
      await write(third)
      await store.read(async ({ edge: { entries } }) => {
        const chain = [...first.entries, ...second.entries, ...third.entries]
        for (const { n, hash } of chain) {
          const found = await entries.hashInChain(DEVICE, 1, n)
          expect(found!.length).toBeGreaterThanOrEqual(16)
          expect(hash.startsWith(found!)).toBe(true)
          expect((await entries.hashes(DEVICE, 1, n, n)).has(hash)).toBe(true)
        }
        expect(await entries.hashInChain(DEVICE, 1, 7)).toBeUndefined()
        const known = await entries.hashes(DEVICE, 1, 3, 3)
        expect(branch.entries.map(({ hash }) => known.has(hash))).toEqual([true, true])
        const other = delivery(1, [{ tokens: 9n }, {}, {}])
        const all = await entries.hashes(DEVICE, 1, 1, 9)
        expect(other.entries.some(({ hash }) => all.has(hash))).toBe(false)
      })
    })

    /** Everything fails from the call with this number on, as after a kill; `late`: that call has its effect. */
    const dying = (at: number, late: boolean): { deps: ArchiveUsageDeps; calls: () => number } => {
      let calls = 0
      const call = async <T>(work: () => Promise<T>): Promise<T> => {
        calls += 1
        if (calls > at || (calls === at && !late)) throw new Error('killed')
        const result = await work()
        if (calls >= at) throw new Error('killed')
        return result
      }
      const place = archiveDirectory(folder)
      return {
        calls: () => calls,
        deps: deps({
          store: {
            read: (work) => call(() => store.read(work)),
            transaction: (work) => call(() => store.transaction(work)),
          },
          place: {
            name: place.name,
            list: () => call(() => place.list()),
            get: (file) => call(() => place.get(file)),
            create: (file, body) => call(() => place.create(file, body)),
          },
        }),
      }
    }

    it.each([false, true])('loses and repeats nothing when a run is killed at any call (effect: %s)', async (late) => {
      await fill(4)
      const before = await inStore()
      let kills = 0
      for (let at = 1; ; at += 1) {
        const run = dying(at, late)
        const ended = await archiveUsage(run.deps, EVER).then(
          () => true,
          (error: unknown) => {
            expect(String(error)).toContain('killed')
            return false
          },
        )
        time += ARCHIVER_SILENT_MS_MAX + 1
        const end = await archivedUpTo()
        const archived = end === 0n ? '' : (await inArchive()).text
        const rest = await inStore(end)
        // A manifest that is not recorded yet repeats what the store has.
        const known = archived.split('\n').filter((line) => line !== '' && cursorOf(line) <= end)
        expect(known.map((line) => `${line}\n`).join('') + rest.text).toBe(before.text)
        if (ended) break
        kills += 1
      }
      expect(kills).toBeGreaterThan(10)
      await archiveUsage(deps(), EVER)
      expect(await inArchive()).toEqual(before)
      expect((await verify()).problems).toEqual([])
      expect(await rowsLeft()).toBe(0)
      const named = readdirSync(folder).filter((file) => file.endsWith('.manifest.json'))
      const files = named.flatMap((file) => filesOf(join(folder, file)))
      expect(readdirSync(folder).sort()).toEqual([...named, ...files].sort())
    })

    it('has one writer, names it to a second one, and records nothing from a writer that was considered dead', async () => {
      await fill(2)
      const held = Promise.withResolvers<undefined>()
      const reached = Promise.withResolvers<undefined>()
      const place = archiveDirectory(folder)
      const slow: ArchivePlace = {
        ...place,
        create: async (file, body) => {
          reached.resolve(undefined)
          await held.promise
          return place.create(file, body)
        },
      }
      const first = archiveUsage(deps({ place: slow, holder: 'node-1, process 7' }), EVER)
      await reached.promise
      await expect(archiveUsage(deps(), EVER)).rejects.toThrow(/^node-1, process 7 archives/)
      time += ARCHIVER_SILENT_MS_MAX + 1
      const before = await inStore()
      await archiveUsage(deps(), EVER)
      held.resolve(undefined)
      await expect(first).rejects.toMatchObject({ code: 'ARCHIVE_IN_USE' })
      expect(await inArchive()).toEqual(before)
      expect((await verify()).problems).toEqual([])
    })

    /** Reads, and calls of the place, wait at a gate from the one with this number on. */
    const stalling = (from: number) => {
      const gate = Promise.withResolvers<undefined>()
      const reached = Promise.withResolvers<undefined>()
      let calls = 0
      const call = async <T>(work: () => Promise<T>): Promise<T> => {
        calls += 1
        if (calls >= from) {
          reached.resolve(undefined)
          await gate.promise
        }
        return work()
      }
      const place = archiveDirectory(folder)
      return {
        deps: deps({
          store: { read: (work) => call(() => store.read(work)), transaction: (work) => store.transaction(work) },
          place: {
            name: place.name,
            list: () => call(() => place.list()),
            get: (file) => call(() => place.get(file)),
            create: (file, body) => call(() => place.create(file, body)),
          },
        }),
        reached: reached.promise,
        release: () => gate.resolve(undefined),
      }
    }
    const contents = () =>
      Object.fromEntries(readdirSync(folder).map((file) => [file, readFileSync(join(folder, file)).toString('base64')]))

    it('is unaffected by an earlier run that stalled at any call', { timeout: 120_000 }, async () => {
      for (let at = 1; ; at += 1) {
        await store.close()
        store = await open()
        rmSync(folder, { recursive: true, force: true })
        await store.transaction(async (tx) => {
          await tx.edge.devices.insert(device(DEVICE))
          await tx.edge.epochs.insert(newEpoch(DEVICE, 1, { now: 1, present: 1 }))
        })
        await fill(3)
        const stalled = stalling(at)
        const first = archiveUsage(stalled.deps, EVER).then(
          () => 'ended',
          (error: unknown) => error,
        )
        const isStalled = await Promise.race([stalled.reached.then(() => true), first.then(() => false)])
        if (!isStalled) {
          expect(at).toBeGreaterThan(30)
          return
        }
        await store.transaction((tx) => tx.usage.append([usage(99)]))
        time += ARCHIVER_SILENT_MS_MAX + 1
        await archiveUsage(deps(), EVER)
        const written = contents()
        stalled.release()
        expect(await first).toMatchObject({ code: 'ARCHIVE_IN_USE' })
        expect(contents()).toEqual(written)
        expect(await verify()).toMatchObject({ records: 16, problems: [] })
      }
    })

    it('is not taken over while its run is slow but alive', async () => {
      await fill(6)
      const place = archiveDirectory(folder)
      let tries = 0
      const slowly = async <T>(work: () => Promise<T>): Promise<T> => {
        time += ARCHIVER_SILENT_MS_MAX / 2 - 1
        tries += 1
        await expect(archiveUsage(deps(), EVER)).rejects.toMatchObject({ code: 'ARCHIVE_IN_USE' })
        return work()
      }
      const first = deps({
        store: { read: (work) => slowly(() => store.read(work)), transaction: (work) => store.transaction(work) },
        place: { ...place, create: (file, body) => slowly(() => place.create(file, body)) },
        limits: { records: 100, characters: 100_000, piece: 2 },
      })
      expect(await archiveUsage(first, EVER)).toEqual({ archives: 1, records: 30 })
      expect(tries).toBeGreaterThan(8)
    })

    it('takes over from a process that was seen while its clock was ahead', async () => {
      await fill(1)
      await store.transaction((tx) => tx.usageArchives.claim('ahead', time + 2 * ARCHIVER_SILENT_MS_MAX, 1))
      expect(await archiveUsage(deps(), EVER)).toMatchObject({ records: 5 })
    })

    it('waits for sinks of events, and refuses to replay archived usage', async () => {
      await fill(3)
      const before = await inStore()
      const lease = { by: 'node', now: time, until: time + 60_000 }
      await store.transaction((tx) => tx.eventSinks.claim('billing', lease, async () => 0n))
      await archiveUsage(deps(), EVER)
      expect(await archivedUpTo()).toBe(0n)
      const third = cursorOf(before.text.split('\n')[5]!)
      await store.transaction((tx) => tx.eventSinks.move('billing', lease, 0n, third))
      await archiveUsage(deps(), EVER)
      const end = await archivedUpTo()
      expect(end).toBeGreaterThan(0n)
      expect(end).toBeLessThanOrEqual(third)
      const { text } = await inArchive()
      expect(text + (await inStore(end)).text).toBe(before.text)
      const again = replayAfter({ store }, 'billing', end - 1n, time)
      await expect(again).rejects.toMatchObject({ code: 'USAGE_ARCHIVED' })
      await replayAfter({ store }, 'billing', end, time)
    })

    it('is not recorded if a sink was moved back meanwhile, and is found by the next run', async () => {
      await fill(1)
      const before = await inStore()
      const lease = { by: 'node', now: time, until: time + 60_000 }
      await store.transaction((tx) => tx.eventSinks.claim('billing', lease, async () => before.next))
      const place = archiveDirectory(folder)
      const meanwhile: ArchivePlace = {
        ...place,
        create: async (file, body) => {
          await store.transaction((tx) => tx.eventSinks.moveTo('billing', 0n))
          return place.create(file, body)
        },
      }
      await archiveUsage(deps({ place: meanwhile }), EVER)
      expect(await archivedUpTo()).toBe(0n)
      expect(await inStore()).toEqual(before)
      await store.transaction((tx) => tx.eventSinks.moveTo('billing', before.next))
      await archiveUsage(deps(), EVER)
      expect(await inArchive()).toEqual(before)
      expect(await rowsLeft()).toBe(0)
    })

    it('deletes nothing if the place fails or returns other bytes', async () => {
      await fill(2)
      const place = archiveDirectory(folder)
      const full = { ...place, create: () => Promise.reject(new CodedError('ARCHIVE_UNAVAILABLE', 'no space left')) }
      await expect(archiveUsage(deps({ place: full }), EVER)).rejects.toMatchObject({ code: 'ARCHIVE_UNAVAILABLE' })
      const wrong = { ...place, get: async () => Buffer.from('x') }
      await expect(archiveUsage(deps({ place: wrong }), EVER)).rejects.toMatchObject({ code: 'ARCHIVE_DAMAGED' })
      const gone = { ...place, get: async () => null }
      await expect(archiveUsage(deps({ place: gone }), EVER)).rejects.toMatchObject({ code: 'ARCHIVE_DAMAGED' })
      expect(await rowsLeft()).toBe(10)
      expect((await inStore()).text.split('\n')).toHaveLength(11)
      await archiveUsage(deps(), EVER)
      expect((await verify()).problems).toEqual([])
    })

    it('reports a changed, missing or foreign file, a broken chain and a wrong sum', async () => {
      await fill(4)
      await archiveUsage(deps(), EVER)
      const [manifest, second] = readdirSync(folder)
        .filter((file) => file.endsWith('.manifest.json'))
        .sort()
      const [file] = filesOf(join(folder, manifest!))
      const problemsAfter = async (
        name: string,
        change: (text: Buffer) => Buffer | null,
      ): Promise<readonly string[]> => {
        const path = join(folder, name)
        const original = readFileSync(path)
        const changed = change(original)
        if (changed === null) rmSync(path)
        else writeFileSync(path, changed)
        const { problems } = await verify()
        writeFileSync(path, original)
        return problems
      }
      const replaced = (from: RegExp, to: string) => (text: Buffer) => Buffer.from(text.toString().replace(from, to))
      const flipped = (body: Buffer) => {
        const copy = Buffer.from(body)
        copy[copy.length >> 1]! ^= 1
        return copy
      }
      expect(await problemsAfter(file!, flipped)).toEqual([expect.stringContaining(`${file} was changed`)])
      expect(await problemsAfter(file!, () => null)).toEqual([expect.stringContaining(`${file} is missing`)])
      const sum = await problemsAfter(manifest!, replaced(/"tokens": "/, '"tokens": "1'))
      expect(sum.join()).toMatch(/do not add up[\s\S]*does not follow/)
      expect((await problemsAfter(manifest!, replaced(/"after": "0"/, '"after": "1"'))).join()).toContain(
        'another archive',
      )
      expect((await problemsAfter(manifest!, () => null)).join()).toBe('')
      expect((await problemsAfter(second!, () => null)).join()).toContain('does not follow')
      expect((await verify()).problems).toEqual([])
      rmSync(join(folder, file!))
      await expect(inArchive()).rejects.toMatchObject({ code: 'ARCHIVE_DAMAGED' })
    })

    it('refuses a place without the last archive, such as a directory that is not mounted', async () => {
      await fill(2)
      await archiveUsage(deps(), EVER)
      await store.transaction((tx) => tx.usage.append([usage(98), usage(99)]))
      const elsewhere = `${folder} elsewhere`
      renameSync(folder, elsewhere)
      for (const due of [0, EVER]) {
        const refused = archiveUsage(deps(), due)
        await expect(refused).rejects.toMatchObject({ code: 'ARCHIVE_UNAVAILABLE' })
        await expect(refused).rejects.toThrow(/does not contain usage-\d+-\d+\.manifest\.json/)
      }
      expect(existsSync(folder)).toBe(false)
      expect(await rowsLeft()).toBe(2)
      renameSync(elsewhere, folder)
      expect(await archiveUsage(deps(), EVER)).toEqual({ archives: 1, records: 2 })
      expect(await verify()).toMatchObject({ records: 12, problems: [] })
    })

    it('refuses a place with archives of another cloud', async () => {
      await fill(2)
      await archiveUsage(deps(), EVER)
      const end = await archivedUpTo()
      await store.close()
      store = await open()
      await store.transaction((tx) => tx.usage.append([usage(1), usage(2)]))
      await expect(archiveUsage(deps(), EVER)).rejects.toMatchObject({ code: 'ARCHIVE_DIFFERS' })
      await store.transaction((tx) => tx.usage.passForgotten(end))
      await expect(archiveUsage(deps(), EVER)).rejects.toMatchObject({ code: 'ARCHIVE_DIFFERS' })
      expect((await verify()).problems).toEqual([])
    })

    describe('that a run left unfinished', () => {
      /** Replaces the only file of the archive, and makes its manifest fit. */
      const forge = async (change: (text: string) => string, sums = (manifest: Wire): Wire => manifest) => {
        const path = join(
          folder,
          readdirSync(folder).find((file) => file.endsWith('.manifest.json'))!,
        )
        const manifest = JSON.parse(readFileSync(path, 'utf8')) as Wire
        const [file] = manifest.files
        const body = await zstd.compress(change(await zstd.decompress(readFileSync(join(folder, file!.name)))))
        writeFileSync(join(folder, file!.name), body)
        Object.assign(file!, { bytes: body.length, sha256: sha256(body) })
        writeFileSync(path, JSON.stringify(sums(manifest)))
      }
      interface Wire {
        after: string
        upTo: string
        records: number
        files: { name: string; records: number; bytes: number; sha256: string }[]
      }
      const lastLine = (text: string) => text.split('\n').at(-2)!
      const whole = { limits: { records: 100, characters: 100_000, piece: 2 } }
      /** Up to the transaction that records it. */
      const leave = async () => {
        const transaction: Store['transaction'] = (work) => {
          if (readdirSync(folder).some((file) => file.endsWith('.manifest.json'))) throw new Error('killed')
          return store.transaction(work)
        }
        await fill(2)
        await expect(
          archiveUsage(deps({ ...whole, store: { read: (work) => store.read(work), transaction } }), EVER),
        ).rejects.toThrow('killed')
        time += ARCHIVER_SILENT_MS_MAX + 1
        expect(await archivedUpTo()).toBe(0n)
      }
      const refused = async (code: string) => {
        const names = readdirSync(folder).sort()
        await expect(archiveUsage(deps(whole), EVER)).rejects.toMatchObject({ code })
        expect(await archivedUpTo()).toBe(0n)
        expect(await rowsLeft()).toBe(10)
        expect(readdirSync(folder).sort()).toEqual(names)
      }

      it('is recorded if it has the records of the store', async () => {
        await leave()
        await archiveUsage(deps(whole), EVER)
        expect(await rowsLeft()).toBe(0)
        expect(await verify()).toMatchObject({ archives: 1, records: 10, problems: [] })
      })

      it.each<[string, (text: string) => string]>([
        ['a line of which has another text', (text) => text.replaceAll('"b":1.00', '"b":2.00')],
        ['that lacks its last line', (text) => text.slice(0, -(lastLine(text).length + 1))],
        ['that has a line twice', (text) => `${text}${lastLine(text)}\n`],
        ['whose last line is cut', (text) => text.slice(0, -3)],
        ['that is empty', () => ''],
        ['that ends with other text', (text) => `${text}\n`],
      ])('is not recorded with a file %s', async (_, change) => {
        await leave()
        await forge(change)
        await refused('ARCHIVE_DIFFERS')
      })

      it.each<[string, string, (manifest: Wire) => Wire]>([
        ['without its files', 'ARCHIVE_DIFFERS', (manifest) => ({ ...manifest, files: [] })],
        ['with other sums', 'ARCHIVE_DIFFERS', (manifest) => ({ ...manifest, records: 11 })],
        [
          'with a file outside of the place',
          'ARCHIVE_DAMAGED',
          (manifest) => ({ ...manifest, files: manifest.files.map((file) => ({ ...file, name: `../${file.name}` })) }),
        ],
        [
          'with a file of another range',
          'ARCHIVE_DAMAGED',
          (manifest) => ({ ...manifest, files: [...manifest.files, ...manifest.files] }),
        ],
      ])('is not recorded %s', async (_, code, sums) => {
        await leave()
        await forge((text) => text, sums)
        await refused(code)
      })

      it('is not recorded if it ends within a delivery', async () => {
        await leave()
        const [path] = readdirSync(folder).filter((file) => file.endsWith('.manifest.json'))
        const manifest = JSON.parse(readFileSync(join(folder, path!), 'utf8')) as Wire
        const upTo = BigInt(manifest.upTo) - 1n
        rmSync(join(folder, path!))
        writeFileSync(join(folder, manifestName(0n, upTo)), JSON.stringify({ ...manifest, upTo: String(upTo) }))
        await refused('ARCHIVE_DAMAGED')
      })
    })

    it('finds its own archives again after a restore from a backup that still has the records', async () => {
      await fill(3)
      const before = await inStore()
      await archiveUsage(deps(), EVER)
      const names = readdirSync(folder).sort()
      await store.close()
      store = await open()
      await store.transaction(async (tx) => {
        await tx.edge.devices.insert(device(DEVICE))
        await tx.edge.epochs.insert(newEpoch(DEVICE, 1, { now: 1, present: 1 }))
      })
      await fill(3)
      await archiveUsage(deps({ limits: { records: 1_000, characters: 100_000, piece: 500 } }), EVER)
      expect(readdirSync(folder).sort()).toEqual(names)
      expect(await inArchive()).toEqual(before)
      expect(await rowsLeft()).toBe(0)
    })
  })
}

function cursorOf(line: string): bigint {
  return BigInt((JSON.parse(line) as { cursor: string }).cursor)
}

function filesOf(manifest: string): string[] {
  const { files } = JSON.parse(readFileSync(manifest, 'utf8')) as { files: { name: string }[] }
  return files.map(({ name }) => name)
}
