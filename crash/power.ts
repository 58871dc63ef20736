/**
 * Power cuts: replays agent and cloud onto a disk that keeps only flushed data, cuts at many moments, and opens and
 * audits each possible state with the services' own code.
 */
import { mkdirSync, readFileSync, rmSync } from 'node:fs'
import { dirname, join } from 'node:path'
import { seeded } from '../src/demo/random.ts'
import { DeviceAudit } from './audit/device.ts'
import { auditDeviceImage, debtsOfRequests, type DeviceDebt, prepareImage } from './power/device-image.ts'
import { Disk, type Fate, FATES } from './power/disk.ts'
import { SentMessages } from './power/messages.ts'
import { type Life, record } from './power/record.ts'
import { auditTwinImage, debtsOfAnswers, type Keys } from './power/twin-image.ts'
import { type Moment, moments, targetOf } from './trace/calls.ts'
import { ANSWER } from './trace/replies.ts'

export interface PowerOptions {
  readonly directory: string
  readonly decisions: number
  readonly cuts: number
  readonly seed: number
  /** Loaded by agent and cloud first. */
  readonly preload?: readonly URL[]
  readonly onProgress: (side: Side, done: number) => void
}

export type Side = 'agent' | 'twin'

export interface CutReport {
  readonly side: Side
  readonly cuts: number
  readonly fates: Record<Fate, number>
  atRisk: number
  unflushed: number
  /** State sent before a cut and verified after it, over all cuts. */
  owed: number
  /** All such state of the recording, by kind. */
  readonly kinds: Readonly<Record<string, number>>
  readonly moments: number
  readonly failures: string[]
}

export async function cutPower(options: PowerOptions): Promise<readonly CutReport[]> {
  const { directory } = options
  const { agentState, twinState, agentLives, twinLives } = await record(options)
  const device = new DeviceAudit()
  device.read(join(agentState, 'journal.db'))
  const keys: Keys = {
    'signing-key.pem': readFileSync(join(twinState, 'signing-key.pem'), 'utf8'),
    'administration-key.pem': readFileSync(join(twinState, 'administration-key.pem'), 'utf8'),
  }
  const image = join(directory, 'image')
  const agent = await cutSide(options, {
    ...{ side: 'agent', lives: agentLives, root: dirname(agentState), image },
    debts: (messages, answers) => [...debtsOfRequests(messages), ...answers],
    audit: (debts) => auditDeviceImage(join(image, 'state'), debts),
  })
  const twin = await cutSide(options, {
    ...{ side: 'twin', lives: twinLives, root: dirname(twinState), image },
    debts: debtsOfAnswers,
    audit: (debts) => auditTwinImage(join(image, 'state'), debts, device.ledger, keys),
  })
  return [agent, twin]
}

interface Plan<Debt> {
  readonly side: Side
  readonly lives: readonly Life[]
  readonly root: string
  readonly image: string
  readonly debts: (messages: SentMessages['all'], answers: readonly Answer[]) => readonly Debt[]
  readonly audit: (debts: readonly Debt[]) => Promise<void>
}

type Answer = Extract<DeviceDebt, { kind: 'answer' }>

async function cutSide<Debt extends { readonly at: number; readonly kind: string }>(
  { cuts, seed, onProgress }: PowerOptions,
  { side, lives, root, image, debts, audit }: Plan<Debt>,
): Promise<CutReport> {
  const random = seeded(seed)
  const survey = await surveyOf(lives, root)
  const owed = debts(survey.messages.all, survey.answers).toSorted((a, b) => a.at - b.at)
  const chosen = new Set<number>()
  const choose = (from: readonly number[], count: number): void => {
    const wanted = Math.min(count, chosen.size + from.length)
    const left = from.filter((number) => !chosen.has(number))
    while (chosen.size < wanted && left.length > 0)
      chosen.add(left.splice(random.between(0, left.length - 1), 1)[0] ?? 0)
  }
  // Most changes are in the log; the others (checkpoints, new files, keys) get half of the cuts if there are enough.
  choose(survey.rare, Math.floor(cuts / 2))
  choose(survey.changes, cuts)

  const fates = Object.fromEntries(FATES.map((fate) => [fate, 0])) as Record<Fate, number>
  const kinds: Record<string, number> = {}
  for (const { kind } of owed) kinds[kind] = (kinds[kind] ?? 0) + 1
  const report: CutReport = {
    ...{ side, cuts: chosen.size, fates, atRisk: 0, unflushed: 0, owed: 0, kinds, moments: survey.changes.length },
    failures: [],
  }
  const disk = new Disk(root)
  let done = 0
  for await (const { moment, number } of replay(lives, disk)) {
    disk.take(moment)
    if (!chosen.has(number)) continue
    const fate = random.pick(FATES)
    const due = owed.filter(({ at }) => at <= number)
    fates[fate] += 1
    if (disk.atRisk > 0) report.atRisk += 1
    report.unflushed += disk.atRisk
    report.owed += due.length
    mkdirSync(image)
    disk.writeImage(image, fate, random)
    prepareImage(join(image, 'state'))
    try {
      await audit(due)
    } catch (error) {
      report.failures.push(
        `${side}, moment ${number}, ${fate}: ${error instanceof Error ? error.message : String(error)}`,
      )
    }
    rmSync(image, { recursive: true })
    done += 1
    onProgress(side, done)
  }
  return report
}

interface Survey {
  readonly changes: readonly number[]
  /** Those outside write-ahead logs. */
  readonly rare: readonly number[]
  readonly messages: SentMessages
  readonly answers: readonly Answer[]
}

async function surveyOf(lives: readonly Life[], root: string): Promise<Survey> {
  const disk = new Disk(root)
  const changes: number[] = []
  const rare: number[] = []
  const messages = new SentMessages()
  const answers: Answer[] = []
  for await (const { moment, number } of replay(lives, disk)) {
    const { call } = moment
    messages.take(moment, number)
    if (disk.take(moment)) {
      changes.push(number)
      if (!targetOf(call).endsWith('-wal')) rare.push(number)
    }
    if (moment.kind === 'end' || !call.name.startsWith('write') || !targetOf(call).startsWith('UNIX-STREAM')) continue
    const correlationId = ANSWER.exec(call.args)?.[1]
    if (correlationId === undefined) continue
    answers.push({ kind: 'answer', at: number, correlationId })
    // The last moment before the next write.
    changes.push(number)
  }
  return { changes, rare, messages, answers }
}

async function* replay(
  lives: readonly Life[],
  disk: Disk,
): AsyncGenerator<{ readonly moment: Moment; readonly number: number }> {
  let number = 0
  for (const { log, left } of lives) {
    for await (const moment of moments(log)) {
      number += 1
      yield { moment, number }
    }
    disk.endLife(left)
  }
}
