/**
 * A device sends a segment; the cloud responds with one answer. A segment is sealed (durable, with a random salt and
 * the previous hash) before its first byte leaves the device, and is resent unchanged until acknowledged; the cloud
 * repeats its stored answer. Both are signed; nothing else changes a balance.
 */
import { z } from 'zod'
import { ACCOUNT_ID_MAX } from '../../core/accounts/account.ts'
import { hashText } from '../signing.ts'
import { instant, microText, plainText, sumText, uuid } from '../wire.ts'
import { deviceSuspension } from './device-suspension.ts'
import { thumbprintText } from './device-key.ts'
import { engineVersion } from './engines.ts'
import { SEGMENT_SESSIONS_MAX, SESSION_EVENTS, sessionCommand, sessionSnapshot } from './sessions.ts'

export const accountId = z.string().min(1).max(ACCOUNT_ID_MAX)

export const SEGMENT_ENTRIES_MAX = 1_000

/**
 * Maximum JSON bytes of a segment and of its parts: encoded in base64url, signed and sent with a nonce, it fits the
 * body of a sync. A single entry may exceed its part; top-up requests use the remainder.
 */
export const SEGMENT_BYTES_MAX = 6_150_000
export const SEGMENT_ENTRIES_BYTES_MAX = 2_000_000
export const SEGMENT_COUNTERS_BYTES_MAX = 1_500_000
export const SEGMENT_SESSIONS_BYTES_MAX = 1_000_000
export const SEGMENT_TOP_UPS_BYTES_MAX = 1_000_000
export const SEGMENT_NEEDS_BYTES_MAX = 500_000

/** Maximum text of a segment's entries, UTF-16 units; a single entry may exceed it. */
export const SEGMENT_TEXT_MAX = 1_000_000

/**
 * Of each list of counters or top-up requests, and of all entries together: their accounts are locked, moved and saved in one
 * transaction, for which other devices wait.
 */
export const SEGMENT_ACCOUNTS_MAX = 2_000

export const SEGMENT_NEEDS_MAX = 1_000
/** Accounts of a waiting request, or of an entry. */
export const NEED_ACCOUNTS_MAX = 1_500
/** Of all waiting requests of a segment together. */
export const SEGMENT_NEED_POSTINGS_MAX = 3_000

/**
 * Decompressed body of a sync, bytes: fits a full segment plus its previous answer. Answers are bounded by their
 * parts: grants name accounts in the top-up requests of the segment, and all other lists have limits.
 */
export const SYNC_BODY_BYTES_MAX = 16 * 1024 * 1024

export const RELEASES_MAX = 1_000

export const PROOFS_MAX = 32

/** Maximum characters of the proofs of a sync together; a single proof may exceed it. */
export const PROOFS_TEXT_MAX = 4 * 1024 * 1024

/** Largest signed policy that a device shows to a restored cloud, characters. */
export const RULES_SHOWN_MAX = 1_000_000

/** Body of `POST .../devices/{deviceId}/sync`. `nonce` is fresh for each attempt, and returned in the signed time. */
export const syncRequest = z
  .strictObject({
    segment: z.string().min(1),
    nonce: z.string().min(16).max(64),
    /**
     * Compact JWS that the cloud itself signed for this device: earlier answers, so that a restored cloud can re-enter
     * its grants (the answer to this same segment is returned again), or policies of a revision above the cloud's
     * newest.
     */
    proofs: z
      .array(z.string().min(1))
      .max(PROOFS_MAX)
      .refine(
        (proofs) => proofs.length <= 1 || proofs.reduce((sum, { length }) => sum + length, 0) <= PROOFS_TEXT_MAX,
        `must have at most ${PROOFS_TEXT_MAX} characters in all`,
      )
      .optional(),
  })
  .meta({ id: 'SyncRequest' })

const entryRange = z.strictObject({
  first: z.int().min(1),
  /** Chain head before the first and after the last entry. */
  previousHash: hashText,
  head: hashText,
  bodies: z.array(z.string()).max(SEGMENT_ENTRIES_MAX),
})

/**
 * Undelivered entries of an earlier epoch, whose own chain was forked or refused. Numbers and chain are those of that
 * epoch. Each entry is billed once, by its chained hash, whichever copy delivers it. Empty if the device only reports
 * that there are no more.
 */
const undeliveredRange = z.strictObject({
  epoch: z.int().min(1),
  entries: entryRange,
  /**
   * Counters as of the first entry, if the cloud lost the entries before it and the device no longer keeps them. Sent
   * before the entries; `isLast` marks the end. Absent if nothing is missing.
   */
  counted: z
    .strictObject({
      counters: z
        .array(z.strictObject({ account: accountId, used: microText, refunded: microText }))
        .max(SEGMENT_ACCOUNTS_MAX),
      isLast: z.boolean(),
    })
    .optional(),
  /**
   * All entries of that epoch are delivered now: unless there was another writer, the cloud closes the epoch exactly.
   * Always false for the remainder after a restore.
   */
  final: z.boolean(),
})

/** Payload of the JWS of kind `segment`, signed by the device key. */
export const segment = z.strictObject({
  deviceId: uuid,
  epoch: z.int().min(1),
  /** 1, 2, 3 ... per epoch. */
  seq: z.int().min(1),
  /** SHA-256 of the previous segment's payload; the chain start for the first. */
  previousHash: hashText,
  /** Random, so that copies of a device diverge at their first segment. */
  salt: z.string().min(16).max(64),
  bootId: z.string().max(64),
  /** The device's time at sealing. `latest` null: unbounded. */
  clock: z.strictObject({ now: instant, earliest: instant, latest: instant.nullable() }),
  /** Absolute counters, as of the last entry in this segment, of all accounts that changed since the previous one. */
  counters: z
    .array(z.strictObject({ account: accountId, used: microText, refunded: microText, returned: microText }))
    .max(SEGMENT_ACCOUNTS_MAX),
  /** Ledger entries `first` .. `first + bodies.length - 1`, each the JSON text of an {@link entryBody}. */
  entries: entryRange,
  /** While there are undelivered entries, a segment carries no entries of the current epoch. */
  undeliveredRange: undeliveredRange.nullable(),
  /** Later entries, and other undelivered entries, still to come. */
  backlog: z.int().min(0),
  /** Term of the grant in force for all later decisions. 0: not stated. */
  grantTerm: z.int().min(0),
  /** Top-up requests in advance; "0" only asks for the pool's balance. */
  topUpRequests: z.array(z.strictObject({ account: accountId, wanted: microText })).max(SEGMENT_ACCOUNTS_MAX),
  /** Charges of waiting requests, in order of arrival. The cloud covers all missing tokens of a request, or none. */
  needs: z
    .array(
      z
        .array(z.strictObject({ account: accountId, amount: microText }))
        .min(1)
        .max(NEED_ACCOUNTS_MAX),
    )
    .max(SEGMENT_NEEDS_MAX),
  /** Revision in force per instance; 0: none. */
  policies: z.array(z.strictObject({ instanceId: uuid, revision: z.int().min(0) })).max(1000),
  sessions: z.array(sessionSnapshot).max(SEGMENT_SESSIONS_MAX).default([]),
  /** Last segment of a fenced epoch; the cloud closes the epoch exactly. */
  final: z.boolean(),
})
export type Segment = z.infer<typeof segment>
export type SegmentWire = z.input<typeof segment>

/**
 * One immutable ledger entry: a decided access request with its refusals, a refund, a burn, or a session change
 * without tokens (`session`: no items, no postings). Postings on a line item's account add up to the charges of the
 * parts (or refunds). A burn is the maximum loss of a power cut: postings without items, each account its own amount.
 */
export const entryBody = z.strictObject({
  n: z.int().min(1),
  kind: z.enum(['access', 'refund', 'session', 'burn']),
  at: instant,
  earliest: instant,
  latest: instant.nullable(),
  instanceId: uuid,
  policyRevision: z.int().min(1),
  /** Engine that decided; the cloud bills the recorded amounts whichever it is. */
  engine: engineVersion,
  correlationId: uuid,
  /** Absent for a one-off request. */
  session: z.strictObject({ id: uuid, event: z.enum(SESSION_EVENTS) }).optional(),
  requester: z.strictObject({ type: plainText(1024), value: plainText(1024) }),
  items: z.array(
    z.strictObject({
      item: plainText(256),
      version: plainText(256),
      /** Decimal text. */
      count: z.string().max(100),
      /** Variables for rate table formulas; decimal text by name. */
      variables: z.record(z.string().max(64), z.string().max(100)).optional(),
      /** `GRANTED`, `NOT_CHARGED`, or the reason of the refusal. */
      outcome: plainText(64),
      /** Micro-tokens: the sum of the parts. Each part fits a counter of 64 bits. */
      total: sumText,
      parts: z.array(
        z.strictObject({
          lineItemId: plainText(256),
          /** Decimal text. */
          rate: z.string().max(100),
          actionId: plainText(64).nullable(),
          charged: microText,
        }),
      ),
      metaData: z.record(z.string(), z.unknown()).optional(),
    }),
  ),
  postings: z.array(
    z.strictObject({
      account: accountId,
      amount: microText,
      /** Part above the grant, under the offline policy. Absent: none. */
      aboveGrant: microText.optional(),
    }),
  ),
})
export type EntryBody = z.infer<typeof entryBody>
export type EntryBodyWire = z.input<typeof entryBody>

/** Two signed documents; the second is fresh for each attempt. */
export const signedAnswer = z
  .strictObject({ answer: z.string().min(1), time: z.string().min(1) })
  .meta({ id: 'SignedAnswer', description: 'Two compact JWS: the answer, and the signed time of this attempt.' })

/** Payload of the JWS of kind `time`, signed by the cloud for this attempt and this answer only. */
export const signedTime = z.strictObject({
  nonce: z.string(),
  time: instant,
  /** SHA-256 of the signed answer's text. */
  answer: hashText,
  /** Null: none. */
  suspension: deviceSuspension.nullable().default(null),
  /** Broker for change notifications; null: none. It may differ from the one named at enrollment. */
  push: z.url().nullable(),
})

const grant = z.strictObject({
  /** Increases with each grant of the epoch; a device accepts only a higher term. */
  term: z.int().min(1),
  /** Powered-on time since receipt in which the device can spend its balance, ms. */
  lifetimeMs: z.int().min(0),
  /** The same end in wall time. */
  expiresAt: instant,
  /** Cumulative; accounts that are not named keep their grants. */
  accounts: z.array(
    z.strictObject({
      account: accountId,
      granted: microText,
      /** The pool has no more tokens: a shortage on the device is a shortage of the pool. */
      exhausted: z.boolean(),
      /** What the pool could still give to a waiting request now. */
      available: microText,
      /** What other devices in contact could return to the pool, for a later request. Absent: nothing, or not needed. */
      returnable: microText.optional(),
      /** Unlimited overdraft: usage is metered only. */
      unlimited: z.boolean(),
      /**
       * Maximum overdraft among the unspent tokens (the last of `granted`): grants on all devices above the quantity
       * of the line item. Absent: none.
       */
      overdraft: microText.optional(),
    }),
  ),
})
export type Grant = z.infer<typeof grant>

/**
 * `release`: return all available balance. `sync`: sync again at once. `resend`: the cloud was restored and may lack
 * acknowledged segments of earlier epochs; send again those that are kept.
 */
const directive = z.enum(['release', 'sync', 'resend'])

/** Recall: return the balance above `keep`. The device may keep less, not more. */
const release = z.strictObject({ account: accountId, keep: microText })

/** Signed proof that these entries are billed. A device deletes a segment only with it, and after `retainUntil`. */
const receipt = z.strictObject({
  epoch: z.int().min(1),
  seq: z.int().min(1),
  hash: hashText,
  /** Own entries of the segment; `to` is `from - 1` if there are none. `head` is the chain head after the last. */
  entries: z.strictObject({ from: z.int().min(1), to: z.int().min(0), head: hashText }),
  /** POSIX ms; until then the cloud may request the segment again. */
  retainUntil: instant,
})

const common = { deviceId: uuid, epoch: z.int().min(1) }

/** Entries of an earlier epoch or a fork that are not billed but kept as evidence. Absent: none. */
const unbilled = z.int().min(1).optional()

/** Payload of the JWS of kind `sync-answer`, signed by the cloud. */
export const syncAnswer = z.discriminatedUnion('outcome', [
  z.strictObject({
    outcome: z.literal('MERGED'),
    ...common,
    seq: z.int().min(1),
    hash: hashText,
    receipt,
    grant: grant.nullable(),
    policies: z.array(z.strictObject({ instanceId: uuid, revision: z.int().min(0) })),
    directives: z.array(directive),
    releases: z.array(release).max(RELEASES_MAX),
    sessions: z.array(sessionCommand).max(SEGMENT_SESSIONS_MAX).default([]),
    /** Thumbprint of the key to replace; ignored by a device with another key. */
    replaceKey: thumbprintText.optional(),
    /** Latest time of the next sync. */
    nextSyncMs: z.int().min(0),
    time: instant,
    unbilled,
  }),
  /** An earlier segment than the last merged one (`seq` and `hash`): nothing changed. */
  z.strictObject({ outcome: z.literal('KNOWN'), ...common, seq: z.int().min(0), hash: hashText }),
  /** Earlier segments are missing: resend from `seq + 1`. */
  z.strictObject({ outcome: z.literal('BEHIND'), ...common, seq: z.int().min(0) }),
  /**
   * The epoch is no longer current; `seq` is its last merged segment. If not closed: stop spending, seal and send the
   * rest as final, attach again. If closed: attach again. Either way this segment is acknowledged: merged, or, if
   * `forked` and `hash` differs, kept as evidence with its entries billed as a branch.
   */
  z.strictObject({
    outcome: z.literal('FENCED'),
    ...common,
    seq: z.int().min(0),
    hash: hashText,
    forked: z.boolean(),
    closed: z.boolean(),
    receipt: receipt.nullable(),
    unbilled,
  }),
  /**
   * The segment is inconsistent and kept as evidence; it is not merged, and the epoch gets no more grants. Its
   * entries can be delivered as undelivered entries of the next epoch.
   */
  z.strictObject({ outcome: z.literal('REJECTED'), ...common, hash: hashText, problem: z.string().max(1000) }),
])
export type SyncAnswer = z.infer<typeof syncAnswer>
export type SyncAnswerWire = z.input<typeof syncAnswer>
