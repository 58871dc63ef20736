/** Agent status on the socket. Amounts are micro-tokens as integer text, instants POSIX milliseconds. */
import { z } from 'zod'
import type { ClockReading } from '../../core/rules/decision.ts'
import { deviceSuspension } from '../edge/device-suspension.ts'
import { accountId } from '../edge/sync.ts'
import { lastBackup } from './last-backup.ts'
import { instant, microText, uuid } from '../wire.ts'

const storageWear = z.strictObject({
  /** Since the agent's start, including the initial reserve file. */
  written: z.int().min(0),
  /** Measurement time of the next two values, at most a day. */
  measuredMs: z.int().min(0),
  perDecision: z.int().nullable(),
  perDay: z.int().nullable(),
  budgetPerDay: z.int().min(0).nullable(),
})
export type StorageWear = z.infer<typeof storageWear>

/** With a larger error, ms, the wall clock misleads people and other programs, and tokens are refused. */
export const CLOCK_OFF_MS = 60_000

/** How far the wall clock is outside of the interval that the cloud has signed, ms. */
export function clockErrorMs({ earliest, latest }: ClockReading, wall: number): number {
  return Math.max(0, earliest - wall, latest === null ? 0 : wall - latest)
}

/** `GET` on the agent's socket. */
export const AGENT_STATUS_PATH = '/tallygate/v1/status'

export const agentStatus = z.strictObject({
  version: z.string(),
  engine: z.int().min(1),
  startedAt: instant,
  deviceId: uuid.nullable(),
  name: z.string().nullable(),
  instanceIds: z.array(uuid),
  epoch: z.int().min(0),
  fenced: z.boolean(),
  /** `since` null: unknown. `next` null: none announced. */
  key: z.strictObject({ id: z.string(), since: instant.nullable(), next: z.string().nullable() }),
  suspension: deviceSuspension.nullable(),
  connected: z.boolean(),
  /** Of earlier runs: when the cloud last confirmed the rules. */
  lastContactAt: instant.nullable(),
  lastSyncAt: instant.nullable(),
  /** Time until the next attempt after a failed sync; null: none failed, or an attempt is in progress. */
  retryInMs: z.int().min(0).nullable(),
  /** `durable`: charges are on disk before the response. `write-behind`: a power cut burns what is reserved. */
  durability: z.enum(['durable', 'write-behind']),
  lastEntry: z.int().min(0),
  backlog: z.int().min(0),
  unacknowledgedSeq: z.int().min(1).nullable(),
  /**
   * `name` null: not known yet. `applied` 0: none; `engine` is the one that it was made for. `remainingMs`: how long it can
   * be used without confirmation by the cloud.
   */
  policies: z.array(
    z.strictObject({
      instanceId: uuid,
      name: z.string().nullable(),
      applied: z.int().min(0),
      newest: z.int().min(0),
      engine: z.int().min(1).nullable(),
      remainingMs: z.int().min(0),
    }),
  ),
  /** The agent's own sessions in the cloud. `KEPT`: from before a restart, not checked yet. */
  sessions: z.array(
    z.strictObject({
      instanceId: uuid,
      state: z.enum(['CLOSED', 'KEPT', 'OPEN', 'LOCKED']),
      sessionId: z.string().nullable(),
    }),
  ),
  push: z.enum(['OFF', 'CONNECTED', 'DISCONNECTED']),
  clock: z.strictObject({ now: instant, earliest: instant, latest: instant.nullable() }),
  grant: z.strictObject({ term: z.int().min(1), expiresAt: instant, remainingMs: z.int().min(0) }).nullable(),
  accounts: z.array(
    z.strictObject({
      account: accountId,
      /** Of an action with an allocation: its name in the rules in force, or that of its condition. */
      actionName: z.string().nullable(),
      granted: microText,
      used: microText,
      /** Part of `used`: maximum loss from power cuts, not real usage. */
      burned: microText,
      refunded: microText,
      returned: microText,
      exhausted: z.boolean(),
      unlimited: z.boolean(),
      overdraft: microText,
    }),
  ),
  storage: storageWear.nullable(),
  backup: lastBackup.nullable(),
  conditions: z.array(z.strictObject({ subject: z.string(), code: z.string(), message: z.string(), since: instant })),
})
export type AgentStatus = z.infer<typeof agentStatus>
export type AgentStatusWire = z.input<typeof agentStatus>
