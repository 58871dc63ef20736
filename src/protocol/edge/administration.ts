/**
 * What an administrator sees of the edge: the devices of an instance, and the ledger of its accounts next to what each
 * device incarnation holds of them. All calls need AdministrationAccess. Amounts are micro-tokens as integer text.
 */
import { z } from 'zod'
import { SESSION_STATES } from '../service/sessions.ts'
import { deviceHold } from './device-hold.ts'
import { hashText } from '../signing.ts'
import { instant, microText, uuid } from '../wire.ts'

/** `NONE`: never attached. `FENCED`: gets no grants. `CLOSED`: its final segment is merged, it will attach anew. */
const incarnationStatus = z.enum(['NONE', 'ACTIVE', 'FENCED', 'CLOSED'])

export const deviceState = z
  .strictObject({
    id: uuid,
    name: z.string().nullable(),
    instanceIds: z.array(uuid),
    enrolledAt: instant,
    revokedAt: instant.nullable(),
    /** Id of the administration key that revoked it. */
    revokedBy: z.string().nullable(),
    /** The key that it signs with. */
    key: z.strictObject({
      /** RFC 7638 thumbprint. */
      id: z.string(),
      since: instant,
      /** Announced by the device, and not used yet; null: none is. */
      next: z.string().nullable(),
      /** The device is asked to replace it. */
      rotationAsked: z.boolean(),
    }),
    /** Null: nobody holds it back. */
    hold: deviceHold.nullable(),
    /** Whether its agent is connected to the broker of hints, as this node has heard; null: it has not. */
    presence: z.strictObject({ online: z.boolean(), since: instant }).nullable(),
    /** Its clock, as of its last segment. */
    clock: z
      .strictObject({
        verdict: z.enum(['AGREES', 'OPEN', 'AHEAD', 'BEHIND']).meta({
          description:
            'AGREES: the true time lies within what it takes for possible. OPEN: so it does, and it knows of no later end. AHEAD, BEHIND: it takes for possible only what is later, or long past.',
        }),
        /** Its best estimate less the twin's time, ms. */
        offsetMs: z.int(),
        takenAt: instant,
      })
      .nullable(),
    /** The last segment taken in. */
    lastSyncAt: instant.nullable(),
    software: z.string().nullable(),
    /** 0: never attached. */
    incarnation: z.int().min(0),
    status: incarnationStatus,
    /** Two writers were seen, now or in an earlier incarnation: a copy, or a restored backup. There is evidence. */
    forked: z.boolean(),
    /** A segment did not add up, now or in an earlier incarnation. There is evidence. */
    rejected: z.boolean(),
    /** Last segment merged. */
    seq: z.int().min(0),
    /** Entries that the device had recorded and not sent, as of its last segment. */
    backlog: z.int().min(0),
    /** The device is asked to give back what it holds. */
    releaseAsked: z.boolean(),
    policies: z.array(
      z.strictObject({
        instanceId: uuid,
        /** In force on the device as of its last segment; 0 for none. */
        applied: z.int().min(0),
        newest: z.int().min(0),
      }),
    ),
    /** What is held back for it, over all incarnations. */
    outstanding: z.array(
      z.strictObject({
        account: z.string(),
        /** Granted less returned, less what is billed: what it may still spend or has spent and not reported. */
        unreported: microText,
        billed: microText,
      }),
    ),
  })
  .meta({ id: 'DeviceState' })
export type DeviceState = z.infer<typeof deviceState>
export type DeviceStateWire = z.input<typeof deviceState>

/** `GET .../edge/api/v1/devices?instanceId=&next=&size=`: in the order of enrollment; `next` 0 means no more. */
export const deviceList = z
  .strictObject({ devices: z.array(deviceState), next: z.int().min(0) })
  .meta({ id: 'DeviceList', description: '`next` is 0 on the last page.' })
export type DeviceListWire = z.input<typeof deviceList>

/** What pauses work of the twin that cannot be undone; null: nothing does. `aheadMs`: the wall clock less the time that was expected. */
const clockDoubt = z
  .strictObject({
    code: z.enum(['CLOCK_JUMPED', 'CLOCK_BEHIND_RECORD', 'CLOCK_AHEAD_OF_RECORD', 'CLOCK_DIFFERS_FROM_DATABASE']),
    aheadMs: z.int(),
  })
  .meta({ id: 'ClockDoubt' })

const settlementState = z.strictObject({
  /** More devices are due than may be settled without an administrator. */
  paused: z.boolean(),
  /** Devices that have been silent for so long that they would be settled. */
  due: z.int().min(0),
  /** Devices settled within the last 24 hours. */
  settled: z.int().min(0),
  /** Devices that may be settled within 24 hours, at most. */
  allowed: z.int().min(0),
})
export type SettlementStateWire = z.input<typeof settlementState>

/** `GET .../edge/api/v1/sweeps`: what this node knows of its clock, and how settlement stands. */
export const sweepState = z
  .strictObject({ now: instant, clock: clockDoubt.nullable(), settlement: settlementState })
  .meta({ id: 'SweepState' })
export type SweepState = z.infer<typeof sweepState>
export type SweepStateWire = z.input<typeof sweepState>

/** `GET .../edge/api/v1/audit?deviceId=&before=&size=`: newest first; `next` null means no more. */
export const auditList = z
  .strictObject({
    records: z.array(
      z.strictObject({
        at: instant,
        /**
         * Id of the administration key; of REPLACE_DEVICE_KEY the thumbprint of the key that the device had before; of NOTICE_RESTORE
         * `twin`: the device has shown what the twin has signed and does not know, or the sales mark what the database has forgotten.
         */
        by: z.string(),
        action: z.enum([
          'LOCK_DEVICE',
          'UNLOCK_DEVICE',
          'TERMINATE_DEVICE',
          'RELEASE_DEVICE',
          'REVOKE_DEVICE',
          'ROTATE_DEVICE_KEY',
          'REPLACE_DEVICE_KEY',
          'LOCK_SESSION',
          'UNLOCK_SESSION',
          'TERMINATE_SESSION',
          'NOTICE_RESTORE',
          'CONFIRM_CLOCK',
          'CONFIRM_SETTLEMENT',
          'SET_CLOUD_RESERVE',
          'END_RECOVERY',
        ]),
        deviceId: uuid.nullable(),
        sessionId: uuid.nullable(),
        /** Of SET_CLOUD_RESERVE: the line item, and the tokens that are kept of it from then on. */
        lineItem: z.strictObject({ instanceId: uuid, lineItemId: z.string(), tokens: microText }).nullable(),
        /** Why NOTICE_RESTORE, where no device has shown it; of END_RECOVERY, as JSON, the instance and what may be sold twice. */
        detail: z.string().nullable(),
      }),
    ),
    next: z.string().nullable(),
  })
  .meta({ id: 'AuditList' })
export type AuditListWire = z.input<typeof auditList>

/**
 * Answer to `POST .../edge/api/v1/sessions/{sessionId}/lock`, `/unlock` and `/terminate`: how the session stands. `ORDERED`,
 * with status 202: a device keeps it, and makes it so with its next sync.
 */
export const heldSession = z.strictObject({
  sessionId: uuid,
  state: z.enum(SESSION_STATES),
  outcome: z.enum(['DONE', 'ORDERED']),
})
export type HeldSessionWire = z.input<typeof heldSession>

/**
 * Answer to the same below `.../devices/{deviceId}`. `NOTED`, with status 202: the twin does not know the session, so its state is
 * null; the device hears of the order when it tells of the session.
 */
export const orderedSession = heldSession.extend({
  state: heldSession.shape.state.nullable(),
  outcome: z.enum(['DONE', 'ORDERED', 'NOTED']),
})
export type OrderedSessionWire = z.input<typeof orderedSession>

/**
 * `GET .../edge/api/v1/devices/{deviceId}/evidence`: segments that were not merged, and those that brought entries of a
 * forked or refused incarnation as its remnant, newest first.
 */
export const deviceEvidence = z
  .strictObject({
    evidence: z.array(
      z.strictObject({
        incarnation: z.int().min(1),
        kind: z.enum(['FORK', 'REJECTED', 'REMNANT']),
        seq: z.int().min(1),
        hash: hashText,
        /** Of the merged segment that it contradicts. */
        recordedHash: hashText.nullable(),
        /** What does not add up. */
        problem: z.string().nullable(),
        receivedAt: instant,
        /** The segment as the device signed it, and the one that it contradicts where that is still kept: compact JWS. */
        document: z.string(),
        recordedDocument: z.string().nullable(),
      }),
    ),
  })
  .meta({ id: 'DeviceEvidence' })
export type DeviceEvidenceWire = z.input<typeof deviceEvidence>

/** Pieces of evidence in one answer. */
export const EVIDENCE_SHOWN_MAX = 20

/**
 * `GET .../edge/api/v1/instances/{instanceId}/accounts`. In each account, `grantedOut` is the sum of `held` and
 * `billedByDevices` the sum of `billed` over its devices, and `charged + grantedOut` is at most `capInForce`.
 */
export const accountLedger = z
  .strictObject({
    accounts: z.array(
      z.strictObject({
        account: z.string(),
        /** Null: metered only. */
        cap: microText.nullable(),
        /** Above `cap` by what was out when the cap was lowered, or what copies of a device have overspent. */
        capInForce: microText.nullable(),
        /** By the cloud itself, less its refunds. */
        charged: microText,
        grantedOut: microText,
        billedByDevices: microText,
        /** Of `billedByDevices`, what is presumed. */
        presumed: microText,
        /** Sold before a restore from a backup, and not accounted for: nothing of it is sold. */
        withheld: microText,
        /** Spent by devices above their grants, by the offline policy of the line item: the pool made room for it. */
        arrears: microText,
        /**
         * By how much true use may exceed the cap, at most: what was released without evidence, and what is not accounted for on
         * forked incarnations, because each of the copies of the device may spend it.
         */
        exposure: z.strictObject({ released: microText, copies: microText }),
        devices: z.array(
          z.strictObject({
            deviceId: uuid,
            incarnation: z.int().min(1),
            status: incarnationStatus,
            granted: microText,
            used: microText,
            refunded: microText,
            returned: microText,
            /** Charged by other writers with the same identity: copies, or the device before it was restored. */
            branchUsed: microText,
            /** Of its use: spent above its grants, by the offline policy of the line item. */
            arrears: microText,
            /** Settled as used after silence, without evidence; in `billed`, and falls as evidence comes in. */
            presumed: microText,
            /** Settled as unused after silence, without evidence: it may still turn out to have been spent. */
            released: microText,
            unlimited: z.boolean(),
            held: microText,
            billed: microText,
          }),
        ),
      }),
    ),
  })
  .meta({ id: 'AccountLedger' })
export type AccountLedgerWire = z.input<typeof accountLedger>

/** `PUT .../edge/api/v1/instances/{instanceId}/line-items/{lineItemId}/offline-policy`. */
export const offlinePolicyOrder = z.discriminatedUnion('policy', [
  z.strictObject({ policy: z.literal('refuse') }),
  /** Each device may spend so much above its grant until its next contact. */
  z.strictObject({
    policy: z.literal('essential'),
    arrearsCap: microText.refine((cap) => cap > 0n, 'must be more than 0'),
  }),
])

/** What devices do with a line item when their grant is used up and the cloud cannot be asked. */
export const offlinePolicyState = z.strictObject({
  instanceId: uuid,
  lineItemId: z.string(),
  policy: z.enum(['refuse', 'essential']),
  arrearsCap: microText,
  /** That serve the instance and are not revoked. */
  devices: z.int().min(0),
  /** What all of them together may spend beyond what the pool has given them: cap times devices. */
  exposure: microText,
})
export type OfflinePolicyStateWire = z.input<typeof offlinePolicyState>

/** `PUT .../edge/api/v1/instances/{instanceId}/line-items/{lineItemId}/cloud-reserve`. "0": nothing is reserved. */
export const cloudReserveOrder = z.strictObject({ tokens: microText })

/** How many tokens of a line item, in each period, devices are never granted. */
export const cloudReserveState = z
  .strictObject({
    instanceId: uuid,
    lineItemId: z.string(),
    tokens: microText,
    /** Of these, what devices hold at this moment; it is recalled from them. */
    onDevices: microText,
  })
  .meta({ id: 'CloudReserve' })
export type CloudReserveStateWire = z.input<typeof cloudReserveState>

/**
 * `GET .../edge/api/v1/instances/{instanceId}/recovery`: how far a cloud is that was restored from a backup. The answer to
 * `POST .../recovery/end` is the state before, with what may be sold twice from then on.
 */
export const recoveryState = z
  .strictObject({
    /** Null: none is under way. */
    since: instant.nullable(),
    /**
     * Null: what may have been sold is withheld from each account, and the rest is sold. Else nothing is sold: `NODE` until
     * another node has shown its sales mark, `MARK` until an administrator ends the recovery.
     */
    unproven: z.enum(['MARK', 'NODE']).nullable(),
    /** Devices that have to be heard from; `incarnation` is null for one that has never attached. Up to 100. */
    waitingFor: z.array(
      z.strictObject({
        deviceId: uuid,
        incarnation: z.int().min(1).nullable(),
        status: z.enum(['ACTIVE', 'FENCED', 'CLOSED']).nullable(),
      }),
    ),
    /** What may be sold twice when an administrator ends the recovery, at most, and what is sold meanwhile. Up to 100. */
    accounts: z.array(z.strictObject({ account: z.string(), atRisk: microText, free: microText })),
  })
  .meta({ id: 'RecoveryState' })
export type RecoveryState = z.output<typeof recoveryState>
export type RecoveryStateWire = z.input<typeof recoveryState>
