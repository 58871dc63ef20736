/**
 * How the agent of a device is, as it says over its socket: the link to the cloud, the rules in force, and every account
 * of the ledger with its four counters. Amounts are micro-tokens as integer text, instants POSIX milliseconds.
 */
import { z } from 'zod'
import { deviceHold } from '../edge/device-hold.ts'
import { accountId } from '../edge/sync.ts'
import { lastBackup } from './last-backup.ts'
import { instant, microText, uuid } from '../wire.ts'

/** What is written to storage, and what that comes to. Bytes. */
const storageWear = z.strictObject({
  /** Since the start of the agent; the space that the first one sets aside is in it. */
  written: z.int().min(0),
  /** The time that the next two are taken from: a day at most. */
  measuredMs: z.int().min(0),
  /** For each entry of the ledger; null: there were too few to tell. */
  perDecision: z.int().nullable(),
  /** Projected; null: not measured for long enough. */
  perDay: z.int().nullable(),
  /** Null: none is set. */
  budgetPerDay: z.int().min(0).nullable(),
})
export type StorageWear = z.infer<typeof storageWear>

/** `GET` on the agent's socket. */
export const AGENT_STATUS_PATH = '/tallygate/v1/status'

export const agentStatus = z.strictObject({
  version: z.string(),
  startedAt: instant,
  /** Null: not enrolled yet. */
  deviceId: uuid.nullable(),
  instanceIds: z.array(uuid),
  /** 0: not attached yet. */
  incarnation: z.int().min(0),
  fenced: z.boolean(),
  /** The key of the device; `since` null: not known, `next` null: none shall follow it. */
  key: z.strictObject({ id: z.string(), since: instant.nullable(), next: z.string().nullable() }),
  /** How an administrator holds the device back; null: nobody does. */
  hold: deviceHold.nullable(),
  /** The last exchange with the cloud got an answer. */
  connected: z.boolean(),
  lastContactAt: instant.nullable(),
  lastSyncAt: instant.nullable(),
  /**
   * What answers promise at the moment. `durable`: the charge stands on the disk. `reserved`: it lies within a block that is
   * reserved there; a power cut counts what is left of the block as used.
   */
  durability: z.enum(['durable', 'reserved']),
  /** Entries of the ledger, acknowledged by the cloud or not. */
  lastEntry: z.int().min(0),
  /** Entries that the cloud has not acknowledged. */
  backlog: z.int().min(0),
  unacknowledgedSeq: z.int().min(1).nullable(),
  /** Per instance: revision in force on the device (0 for none), and the newest that the cloud has named. */
  policies: z.array(z.strictObject({ instanceId: uuid, applied: z.int().min(0), newest: z.int().min(0) })),
  /** The agent's own at the cloud. `KEPT`: from before a restart, and not asked for yet. */
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
      granted: microText,
      used: microText,
      /** Of `used`, what power cuts may have cost at most: not use. */
      burned: microText,
      refunded: microText,
      returned: microText,
      exhausted: z.boolean(),
      unlimited: z.boolean(),
      /** Of what is left, how much at most is overdraft of the line item: it is spent last. */
      overdraft: microText,
    }),
  ),
  /** Null where the system does not tell. */
  storage: storageWear.nullable(),
  /** The last good one by `tallygate backup`; null: none is known. */
  backup: lastBackup.nullable(),
  /** What a technician should know, oldest first. */
  conditions: z.array(z.strictObject({ subject: z.string(), code: z.string(), message: z.string(), since: instant })),
})
export type AgentStatus = z.infer<typeof agentStatus>
export type AgentStatusWire = z.input<typeof agentStatus>
