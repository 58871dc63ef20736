/**
 * Administrators export and report usage at random times: a job all of it, again and again, and others a part of it. Some of
 * them are slow: meanwhile, the cloud writes usage, archives it, and stops.
 */
import { type UsageExportDeps, exportUsage } from '../../src/cloud/usage/export-usage.ts'
import { reportUsage } from '../../src/cloud/usage/report-usage.ts'
import type { Store } from '../../src/cloud/storage/store.ts'
import { CodedError } from '../../src/protocol/errors.ts'
import type { UsageRow } from '../audit/records.ts'
import { archivedEnd, lastPosition, rowOfLine } from '../audit/usage.ts'
import { BEGIN, type Happening, MINUTE } from '../plan.ts'
import { Dead } from '../twin/node.ts'
import type { TwinProcess } from '../twin/twin-process.ts'
import type { Random } from '../world/random.ts'
import type { Rules } from './rules.ts'
import type { Stage } from './stage.ts'

type OfExports = Extract<Happening, { kind: 'usage-export' | 'usage-part' | 'usage-report' }>

const DAY_MS = 86_400_000

/** So few that an export has many pieces: the borders between them are at any record. */
const PIECE_RECORDS = 3

/** So few that a report has several pages. */
const PAGE_RECORDS = 4

/** Longest time that a slow client takes for a piece. */
const PIECE_MS_MAX = 5 * MINUTE

export class Exports {
  readonly #stage: Stage
  readonly #rules: Rules
  readonly #random: Random
  #isJobRunning = false

  constructor(stage: Stage, rules: Rules) {
    this.#stage = stage
    this.#rules = rules
    this.#random = stage.random.stream('exports')
  }

  happen(what: OfExports): void {
    this.#stage.fault(what.kind)
    // Archives have what an export or a report would have to contain.
    const expected = what.kind === 'usage-export' ? [] : (['USAGE_ARCHIVED'] as const)
    this.#stage.byTwinOrRefused(expected, async (twin) => {
      if (what.kind === 'usage-export') await this.#runJob(twin)
      else if (what.kind === 'usage-part') await this.#part(twin, what)
      else await this.#report(twin, what)
    })
  }

  /** Where the process of the cloud ends, a later run repeats what this one has not received. */
  async #runJob(twin: TwinProcess): Promise<void> {
    if (this.#isJobRunning) return
    this.#isJobRunning = true
    try {
      await this.#continueJob(twin)
    } finally {
      this.#isJobRunning = false
    }
  }

  async #continueJob(twin: TwinProcess): Promise<void> {
    const deps = this.#inPieces(twin)
    const { exports } = this.#stage.auditor.bill
    const all = { format: 'ndjson', tenantId: 't', instanceId: null, from: null, to: null } as const
    for (;;) {
      try {
        const { next, pieces } = await exportUsage(deps, { ...all, after: exports.cursor })
        exports.jobReceived(next, linesOf(await textOf(pieces)))
        return
      } catch (error) {
        if (!(error instanceof CodedError)) throw error
        this.#stage.fault(`usage-export: ${error.code}`)
        const backupEnd = / after=(\d+)\./.exec(error.message)?.[1]
        if (error.code === 'USAGE_FORGOTTEN' && backupEnd !== undefined) exports.jobForgets(BigInt(backupEnd))
        else if (error.code === 'USAGE_ARCHIVED') exports.jobReadsArchives(this.#stage.twin.database)
        else throw error
      }
    }
  }

  async #part(twin: TwinProcess, what: Extract<OfExports, { kind: 'usage-part' }>): Promise<void> {
    const [from, to] = [BEGIN + what.fromMs, BEGIN + what.toMs]
    const instanceId = this.#instanceId(what)
    const part = { format: 'ndjson', tenantId: 't', instanceId, from, to, after: null } as const
    const { next, pieces } = await exportUsage(this.#inPieces(twin), part)
    const rows = linesOf(await textOf(pieces)).map(rowOfLine)
    const fits = (row: UsageRow): boolean => isOf(row, instanceId) && row.usage_time >= from && row.usage_time < to
    this.#stage.auditor.bill.exports.received({ name: 'an export of a part', upTo: next, rows, fits })
  }

  /** Reads pages until one is not full. */
  async #report(process: TwinProcess, what: Extract<OfExports, { kind: 'usage-report' }>): Promise<void> {
    const { now } = process
    const { twin, auditor } = this.#stage
    const instanceId = this.#instanceId(what)
    const { pastDays } = what
    const at = now()
    const from = Math.max(0, Math.floor(at / DAY_MS - pastDays) * DAY_MS)
    const upTo = lastPosition(twin.database)
    const archived = archivedEnd(twin.database)
    const deps = { ...this.#inPieces(process), pageRecords: PAGE_RECORDS }
    const read: UsageRow[] = []
    for (let pageNumber = 1; ; pageNumber += 1) {
      const report = { tenantId: 't', instanceId, pastDays, pageNumber, now: at }
      const { data } = JSON.parse(await textOf(await reportUsage(deps, report))) as { readonly data: readonly object[] }
      read.push(...data.map((each) => rowOfLine(JSON.stringify(each))))
      if (data.length < PAGE_RECORDS) break
    }
    // Use that was archived meanwhile and is dated in the future may be on some of the pages.
    if (archivedEnd(twin.database) !== archived) return
    const rows = read.filter(({ position }) => position <= upTo)
    // Archived use that is dated in the future is not of the past days.
    const fits = (row: UsageRow): boolean =>
      isOf(row, instanceId) && row.usage_time >= from && (row.position > archived || row.usage_time <= at)
    auditor.bill.exports.received({ name: 'the pages of a report', upTo, rows, fits })
  }

  #inPieces(process: TwinProcess): UsageExportDeps {
    const { time, plan } = this.#stage
    const pieceMs = this.#random.chance(0.5) ? 0 : this.#random.spread(1, PIECE_MS_MAX)
    const giveWay: UsageExportDeps['giveWay'] = () => {
      if (pieceMs === 0 || time.now >= BEGIN + plan.faultsMs) return undefined
      return new Promise((resolve, reject) => {
        // A response ends with its process, also after the last piece is read.
        time.at(time.now + pieceMs, () => (process.alive ? resolve() : reject(new Dead('it is down'))))
      })
    }
    return { store: inSmallPieces(process.store), giveWay }
  }

  #instanceId({ instance }: { readonly instance: number | null }): string | null {
    return instance === null ? null : this.#rules.instanceId(instance % this.#rules.instanceIds.length)
  }
}

function inSmallPieces(store: Store): Store {
  return {
    ...store,
    read: (work) =>
      store.read((reader) => {
        const range: typeof reader.usage.range = (part) => reader.usage.range({ ...part, limit: PIECE_RECORDS })
        return work({ ...reader, usage: { ...reader.usage, range } })
      }),
  }
}

function isOf(row: UsageRow, instanceId: string | null): boolean {
  return instanceId === null || row.instance_id === instanceId
}

function linesOf(text: string): readonly string[] {
  return text.split('\n').slice(0, -1)
}

async function textOf(pieces: AsyncIterable<string>): Promise<string> {
  let text = ''
  for await (const piece of pieces) text += piece
  return text
}
