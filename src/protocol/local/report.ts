/**
 * What the status endpoint of a device tells: its status as the socket gives it, and around it what a technician asks next.
 * Amounts are micro-tokens as integer text, instants POSIX milliseconds, sizes bytes.
 */
import { z } from 'zod'
import { accountId } from '../edge/sync.ts'
import { instant, microText } from '../wire.ts'
import { agentStatus } from './status.ts'

/** Decisions in one report, newest first. */
export const DECISIONS_MAX = 20

/** Refusals in one report. */
export const REFUSALS_MAX = 5

/** Length of a bin of use over time, ms, and how many a report has: a day of them. */
export const USE_BIN_MS = 1_800_000
export const USE_BINS = 48

const size = z.int().min(0).nullable()

export const deviceReport = z.strictObject({
  /** What to think of it all, in one sentence. `refusing`: requests are refused at the moment, whoever asks. */
  verdict: z.strictObject({ level: z.enum(['ok', 'attention', 'refusing']), sentence: z.string() }),
  /** How exactly the device knows the time; `widthMs` null: nothing bounds it. */
  clock: z.strictObject({ verdict: z.enum(['exact', 'rough', 'unbounded']), widthMs: z.int().min(0).nullable() }),
  status: agentStatus,
  /** Null where the system does not tell. The disk is that of the state directory; memory of the agent is its PSS. */
  machine: z.strictObject({
    diskFree: size,
    diskTotal: size,
    ledgerSize: size,
    memoryOfAgent: size,
    memoryFree: size,
    memoryTotal: size,
  }),
  /**
   * What was charged over the last day, per pool of a line item and per allocation of an action; refunds are not taken off.
   * Counted in memory by powered-on time: an agent that starts recalls what its ledger still holds.
   */
  use: z.strictObject({
    /** Length of a bin, ms. */
    binMs: z.int().min(1),
    /** End of the last bin, which is under way. */
    until: instant,
    /** All is known from then on; before it there may have been more. */
    since: instant,
    /** Those that were charged at all. */
    accounts: z.array(
      z.strictObject({
        account: accountId,
        /** Per bin, oldest first. */
        charged: z.array(microText).length(USE_BINS),
      }),
    ),
  }),
  /** Newest first; those that moved tokens by themselves, such as refunds, are not among them. */
  decisions: z
    .array(
      z.strictObject({
        n: z.int().min(1),
        /** What `tallygate explain` takes. */
        correlationId: z.string(),
        at: instant,
        requester: z.strictObject({ type: z.string(), value: z.string() }),
        item: z.string(),
        version: z.string(),
        /** Decimal text. */
        count: z.string(),
        /** `GRANTED`, `NOT_CHARGED`, or the reason of the refusal. */
        outcome: z.string(),
        tokens: microText,
      }),
    )
    .max(DECISIONS_MAX),
  /** Requests that were turned away before anything was decided, newest first, since the start; and what to do about it. */
  refusals: z
    .array(
      z.strictObject({
        correlationId: z.string(),
        at: instant,
        request: z.string(),
        code: z.string(),
        message: z.string(),
        remedy: z.string(),
      }),
    )
    .max(REFUSALS_MAX),
  /** What is wrong at the moment, oldest first, and what to do about it. */
  problems: z.array(
    z.strictObject({
      subject: z.string(),
      code: z.string(),
      message: z.string(),
      remedy: z.string(),
      since: instant,
    }),
  ),
})
export type DeviceReportWire = z.input<typeof deviceReport>

/** One thing that `GET /readyz` tried. */
export const readiness = z.strictObject({
  ready: z.boolean(),
  checks: z.array(
    z.strictObject({
      name: z.enum(['decision', 'journal']),
      ok: z.boolean(),
      code: z.string().optional(),
      message: z.string().optional(),
    }),
  ),
})
export type Readiness = z.infer<typeof readiness>
