/** Report of the status endpoint: the agent status plus details for technicians. Sizes are bytes. */
import { z } from 'zod'
import { accountId } from '../edge/sync.ts'
import { instant, microText } from '../wire.ts'
import { agentStatus } from './status.ts'

export const DECISIONS_MAX = 20

export const REFUSALS_MAX = 5

/** Bin length of usage over time in ms, and bins per report: one day. */
export const USE_BIN_MS = 1_800_000
export const USE_BINS = 48

const size = z.int().min(0).nullable()

export const deviceReport = z.strictObject({
  /** Health in one sentence. `refusing`: the device currently refuses all requests. */
  health: z.strictObject({
    level: z.enum(['ok', 'attention', 'refusing']),
    sentence: z.string(),
    /** What to do next, in order. Commands are in backticks. */
    steps: z.array(z.string()),
  }),
  clock: z.strictObject({ health: z.enum(['exact', 'rough', 'unbounded']), widthMs: z.int().min(0).nullable() }),
  status: agentStatus,
  /** Null if unknown. Disk of the state directory; agent memory as PSS. */
  machine: z.strictObject({
    diskFree: size,
    diskTotal: size,
    ledgerSize: size,
    memoryOfAgent: size,
    memoryFree: size,
    memoryTotal: size,
  }),
  /** Charges of the last day per line item pool and action allocation, without refunds. */
  use: z.strictObject({
    binMs: z.int().min(1),
    until: instant,
    /** Complete from here on; earlier data may be missing. */
    since: instant,
    accounts: z.array(
      z.strictObject({
        account: accountId,
        charged: z.array(microText).length(USE_BINS),
      }),
    ),
  }),
  decisions: z
    .array(
      z.strictObject({
        n: z.int().min(1),
        correlationId: z.string(),
        at: instant,
        requester: z.strictObject({ type: z.string(), value: z.string() }),
        item: z.string(),
        version: z.string(),
        count: z.string(),
        outcome: z.string(),
        tokens: microText,
      }),
    )
    .max(DECISIONS_MAX),
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

/** Result of `GET /readyz`. */
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
