/** The administrator's view of devices and accounts. All calls need AdministrationAccess. Amounts are micro-tokens. */
import { z } from 'zod'
import { ROLES } from '../service/keys.ts'
import { SESSION_STATES } from '../service/sessions.ts'
import { labels } from './labels.ts'
import { deviceSuspension } from './device-suspension.ts'
import { hashText } from '../signing.ts'
import { instant, microText, sumText, uuid } from '../wire.ts'

/** `NONE`: never attached. `FENCED`: gets no grants. `CLOSED`: its final segment is merged; it attaches again. */
const epochStatus = z.enum(['NONE', 'ACTIVE', 'FENCED', 'CLOSED'])

export const deviceState = z
  .strictObject({
    id: uuid,
    name: z.string().nullable(),
    instanceIds: z.array(uuid),
    enrolledAt: instant,
    revokedAt: instant.nullable(),
    /** Name of the administration key, or its id. */
    revokedBy: z.string().nullable(),
    key: z.strictObject({
      id: z.string(),
      since: instant,
      /** Announced by the device, not used yet. */
      next: z.string().nullable(),
      rotationRequested: z.boolean(),
    }),
    suspension: deviceSuspension
      .extend({
        by: z.string(),
      })
      .nullable(),
    /** Connection of the agent to the MQTT broker, as seen by this node; null: unknown. */
    presence: z.strictObject({ online: z.boolean(), since: instant }).nullable(),
    /** As of the last segment. */
    clock: z
      .strictObject({
        comparison: z.enum(['AGREES', 'OPEN', 'AHEAD', 'BEHIND']).meta({
          description:
            'AGREES: the true time is within the interval that the device considers possible. OPEN: the same, and the interval has no upper bound. AHEAD, BEHIND: the interval is entirely later, or entirely earlier.',
        }),
        /** The device's best estimate minus the cloud's time, ms. */
        offsetMs: z.int(),
        takenAt: instant,
      })
      .nullable(),
    lastSyncAt: instant.nullable(),
    overdue: z.boolean().meta({ description: 'The device is in service and missed three reports.' }),
    software: z.string().nullable(),
    /** 0: never attached. */
    epoch: z.int().min(0),
    status: epochStatus,
    /** The cloud saw two writers, now or in an earlier epoch: a copy or a restored backup. See the evidence. */
    forked: z.boolean(),
    /** A segment was inconsistent, now or in an earlier epoch. See the evidence. */
    rejected: z.boolean(),
    seq: z.int().min(0),
    /** Recorded but unsent entries, as of the last segment. */
    backlog: z.int().min(0),
    releaseRequested: z.boolean(),
    labels,
    policies: z.array(
      z.strictObject({
        instanceId: uuid,
        /** Short name of the instance; null: none. */
        name: z.string().nullable(),
        /** In force on the device as of its last segment; 0: none. */
        applied: z.int().min(0),
        newest: z.int().min(0),
      }),
    ),
    /** Tokens reserved for the device, over all epochs: of line items, and of them those of actions. */
    outstanding: z.array(
      z.strictObject({
        account: z.string(),
        /** Granted − returned − billed: unspent, or spent and not reported. */
        unreported: microText,
        billed: microText,
      }),
    ),
  })
  .meta({ id: 'DeviceState' })
export type DeviceState = z.infer<typeof deviceState>
export type DeviceStateWire = z.input<typeof deviceState>

/** `GET .../edge/api/v1/devices?instanceId=&labels=&next=&size=`, in order of enrollment. */
export const deviceList = z
  .strictObject({ devices: z.array(deviceState), next: z.int().min(0) })
  .meta({ id: 'DeviceList', description: '`next` is 0 on the last page.' })
export type DeviceListWire = z.input<typeof deviceList>

/** Why sweeps are paused. `aheadMs`: wall clock minus expected time. */
const clockDoubt = z
  .strictObject({
    code: z.enum(['CLOCK_JUMPED', 'CLOCK_BEHIND_RECORD', 'CLOCK_AHEAD_OF_RECORD', 'CLOCK_DIFFERS_FROM_DATABASE']),
    aheadMs: z.int(),
  })
  .meta({ id: 'ClockDoubt' })

const settlementState = z.strictObject({
  /** More devices are due than can be settled without confirmation by an administrator. */
  paused: z.boolean(),
  /** Silent devices that are due for settlement. */
  due: z.int().min(0),
  settled: z.int().min(0),
  /** Maximum within 24 hours. */
  allowed: z.int().min(0),
})
export type SettlementStateWire = z.input<typeof settlementState>

/** `GET .../edge/api/v1/sweeps`: state of this node's clock and of settlement. */
export const sweepState = z
  .strictObject({ now: instant, clock: clockDoubt.nullable(), settlement: settlementState })
  .meta({ id: 'SweepState' })
export type SweepState = z.infer<typeof sweepState>
export type SweepStateWire = z.input<typeof sweepState>

/** `POST .../edge/api/v1/console-codes`: for the fragment of a URL, once. */
export const consoleCode = z.strictObject({ code: z.string(), expiresAt: instant }).meta({ id: 'ConsoleCode' })

export const AUDITED_ACTIONS = [
  'CREATE_INSTANCE',
  'IMPORT_INSTANCE',
  'IMPORT_USE',
  'MAP_LINE_ITEM',
  'DELETE_LINE_ITEM',
  'ADD_ACTIONS',
  'REPLACE_ACTIONS',
  'DELETE_ACTIONS',
  'ADD_CONDITIONS',
  'CHANGE_CONDITIONS',
  'DELETE_CONDITIONS',
  'SET_CONSUMPTION_LIMIT',
  'DELETE_CONSUMPTION_LIMIT',
  'CREATE_RATE_TABLE',
  'DELETE_RATE_TABLE',
  'CHANGE_CONFIGURATION',
  'SAVE_KEYS',
  'DELETE_KEY',
  'OPEN_SESSION',
  'CLOSE_SESSION',
  'LOCK_SESSION',
  'UNLOCK_SESSION',
  'TERMINATE_SESSION',
  'ISSUE_ENROLLMENT_TOKEN',
  'ENROLL_DEVICE',
  'LABEL_DEVICE',
  'LOCK_DEVICE',
  'UNLOCK_DEVICE',
  'TERMINATE_DEVICE',
  'DRAIN_DEVICE',
  'REVOKE_DEVICE',
  'ROTATE_DEVICE_KEY',
  'ANNOUNCE_DEVICE_KEY',
  'REPLACE_DEVICE_KEY',
  'SET_OFFLINE_POLICY',
  'SET_CLOUD_RESERVE',
  'NOTICE_RESTORE',
  'END_RECOVERY',
  'CONFIRM_CLOCK',
  'CONFIRM_SETTLEMENT',
  'REPLAY_EVENTS',
  'RETRY_EVENT_SINK',
  'DISCARD_DEAD_LETTERS',
  'FORGET_EVENT_SINK',
  'ARCHIVE_USAGE',
] as const

export const auditedAction = z.enum(AUDITED_ACTIONS)
export type AuditedAction = z.infer<typeof auditedAction>

/** `GET .../edge/api/v1/audit?deviceId=&instanceId=&by=&action=&since=&until=&sessions=&before=&size=`: newest first; `next` is null on the last page. */
export const auditList = z
  .strictObject({
    records: z.array(
      z.strictObject({
        at: instant,
        /**
         * `keyId`: of the key that signed the token, null for CLOUD. `issuer`: the OpenID Connect provider of an administrator
         * who signed in; then `keyId` is the subject there. `name`: of the key, the device or the person at that time.
         */
        by: z.strictObject({
          kind: z.enum(['ADMINISTRATOR', 'CLIENT', 'DEVICE', 'CLOUD']),
          keyId: z.string().nullable(),
          issuer: z.string().nullable(),
          name: z.string().nullable(),
        }),
        action: auditedAction,
        instanceId: uuid.nullable(),
        lineItemId: z.string().nullable(),
        deviceId: uuid.nullable(),
        sessionId: uuid.nullable(),
        /** JSON: other objects, and the values that were set. Amounts are tokens as decimal text. */
        detail: z.string().nullable(),
      }),
    ),
    next: z.string().nullable(),
  })
  .meta({ id: 'AuditList' })
export type AuditListWire = z.input<typeof auditList>

/** `GET .../edge/api/v1/caller`: the administrator that sends the request. */
export const callerState = z
  .strictObject({
    keyId: z.string(),
    /** The OpenID Connect provider; null: a registered key. */
    issuer: z.string().nullable(),
    name: z.string().nullable(),
    /** Roles, and the instances in which they apply; null: all. */
    rights: z.array(z.strictObject({ roles: z.array(z.enum(ROLES)), instances: z.array(uuid).nullable() })),
  })
  .meta({ id: 'Caller' })
export type CallerState = z.infer<typeof callerState>

/** Of `.../sessions/{sessionId}/lock`, `/unlock`, `/terminate`. `PENDING` (202): applied at the device's next sync. */
export const sessionCommandResult = z.strictObject({
  sessionId: uuid,
  state: z.enum(SESSION_STATES),
  outcome: z.enum(['DONE', 'PENDING']),
})
export type SessionCommandResultWire = z.input<typeof sessionCommandResult>

/**
 * The same below `.../devices/{deviceId}`. `NOTED`, with status 202: the cloud does not know the session, so `state`
 * is null; the device receives the command when it reports the session.
 */
export const deviceSessionCommandResult = sessionCommandResult.extend({
  state: sessionCommandResult.shape.state.nullable(),
  outcome: z.enum(['DONE', 'PENDING', 'NOTED']),
})
export type DeviceSessionCommandResultWire = z.input<typeof deviceSessionCommandResult>

/**
 * `GET .../edge/api/v1/devices/{deviceId}/evidence`, newest first: segments that were not merged, and segments with
 * undelivered entries of a forked or rejected epoch.
 */
export const deviceEvidence = z
  .strictObject({
    evidence: z.array(
      z.strictObject({
        epoch: z.int().min(1),
        kind: z.enum(['FORK', 'REJECTED', 'UNDELIVERED_RANGE']),
        seq: z.int().min(1),
        hash: hashText,
        /** Hash of the merged segment that this one contradicts. */
        recordedHash: hashText.nullable(),
        problem: z.string().nullable(),
        receivedAt: instant,
        /** Compact JWS: the segment, and the one that it contradicts if that is still kept. */
        document: z.string(),
        recordedDocument: z.string().nullable(),
      }),
    ),
  })
  .meta({ id: 'DeviceEvidence' })
export type DeviceEvidenceWire = z.input<typeof deviceEvidence>

export const EVIDENCE_SHOWN_MAX = 20

/**
 * `GET .../edge/api/v1/instances/{instanceId}/accounts?next=&size=`, by line item. `grantedOut` and `billedByDevices` are
 * the sums of `outstanding` and `billed` over the devices; `charged + grantedOut` ≤ `capInForce`.
 */
export const accountLedger = z
  .strictObject({
    accounts: z.array(
      z.strictObject({
        account: z.string(),
        /** Null: unlimited. */
        cap: microText.nullable(),
        /** Exceeds `cap` by grants from before the cap was lowered, and by overspend of copied devices. */
        capInForce: microText.nullable(),
        /** By the cloud itself, minus its refunds. */
        charged: microText,
        grantedOut: microText,
        billedByDevices: microText,
        /** Presumed part of `billedByDevices`. */
        presumed: microText,
        /** Sold before a restore and not accounted for yet; not sold again. */
        withheld: microText,
        /** Overspend of devices under the offline policy, covered by the pool. */
        overspend: microText,
        /**
         * Maximum by which real usage can exceed the cap: tokens released without evidence, and unaccounted tokens of
         * forked epochs, which each copy of the device can spend.
         */
        exposure: z.strictObject({ released: sumText, copies: sumText }),
        devices: z.array(
          z.strictObject({
            deviceId: uuid,
            epoch: z.int().min(1),
            status: epochStatus,
            granted: microText,
            used: microText,
            refunded: microText,
            returned: microText,
            /** Charged by other writers with the same identity: copies, or the device before a restore. */
            branchUsed: microText,
            /** Overspend under the offline policy; part of `used`. */
            overspend: microText,
            /** Settled as used after silence, without evidence. Part of `billed`; decreases as evidence arrives. */
            presumed: microText,
            /** Settled as unused after silence, without evidence; may turn out to be spent. */
            released: microText,
            unlimited: z.boolean(),
            outstanding: microText,
            billed: microText,
          }),
        ),
      }),
    ),
    next: z.int().min(0),
  })
  .meta({ id: 'AccountLedger', description: '`next` is 0 on the last page.' })
export type AccountLedgerWire = z.input<typeof accountLedger>

/** `PUT .../edge/api/v1/instances/{instanceId}/line-items/{lineItemId}/offline-policy`. */
export const offlinePolicyRequest = z.discriminatedUnion('policy', [
  z.strictObject({ policy: z.literal('refuse') }),
  z.strictObject({
    policy: z.literal('essential'),
    overspendCap: microText.refine((cap) => cap > 0n, 'must be more than 0'),
  }),
])

/** What devices do with a line item when their grant is used up and they cannot reach the cloud. */
export const offlinePolicyState = z.strictObject({
  instanceId: uuid,
  lineItemId: z.string(),
  policy: z.enum(['refuse', 'essential']),
  overspendCap: microText,
  devices: z.int().min(0),
  /** Maximum overspend of all devices: cap × devices. */
  exposure: sumText,
})
export type OfflinePolicyStateWire = z.input<typeof offlinePolicyState>

/** `PUT .../edge/api/v1/instances/{instanceId}/line-items/{lineItemId}/cloud-reserve`. "0": nothing is reserved. */
export const cloudReserveRequest = z.strictObject({ tokens: microText })

/** Tokens of a line item that devices never receive, per period. */
export const cloudReserveState = z
  .strictObject({
    instanceId: uuid,
    lineItemId: z.string(),
    tokens: microText,
    /** Part of these still on devices; it is recalled. */
    onDevices: microText,
  })
  .meta({ id: 'CloudReserve' })
export type CloudReserveStateWire = z.input<typeof cloudReserveState>

/** `GET .../edge/api/v1/instances/{instanceId}/recovery`. `.../recovery/end` responds with the state before the end. */
export const recoveryState = z
  .strictObject({
    /** Null: no recovery in progress. */
    since: instant.nullable(),
    /**
     * Null: possibly sold tokens are withheld, the rest is sold. Otherwise nothing is sold: `NODE` until another node
     * has shown its sales mark, `MARK` until an administrator ends the recovery.
     */
    unproven: z.enum(['MARK', 'NODE']).nullable(),
    /** Devices that must report; `epoch` is null for a device that never attached. Up to 100. */
    waitingFor: z.array(
      z.strictObject({
        deviceId: uuid,
        epoch: z.int().min(1).nullable(),
        status: z.enum(['ACTIVE', 'FENCED', 'CLOSED']).nullable(),
      }),
    ),
    /**
     * Maximum amounts sold twice if an administrator ends the recovery (`atRisk`), and amounts sold in the meantime
     * (`free`). Up to 100.
     */
    accounts: z.array(z.strictObject({ account: z.string(), atRisk: microText, free: microText })),
  })
  .meta({ id: 'RecoveryState' })
export type RecoveryState = z.output<typeof recoveryState>
export type RecoveryStateWire = z.input<typeof recoveryState>
