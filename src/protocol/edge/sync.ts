/**
 * One message up, one answer down. A segment is sealed (made durable, with a random salt and the hash of the one before)
 * before its first byte leaves the device, and is sent again byte for byte until acknowledged; the cloud answers a
 * repetition with the stored answer. Both are signed; nothing that changes a balance travels outside of them.
 */
import { z } from 'zod'
import { ACCOUNT_ID_MAX } from '../../core/account.ts'
import { hashText } from '../signing.ts'
import { instant, microText, plainText, uuid } from '../wire.ts'
import { deviceHold } from './device-hold.ts'
import { thumbprintText } from './device-key.ts'
import { SEGMENT_SESSIONS_MAX, SESSION_EVENTS, sessionOrder, sessionSnapshot } from './sessions.ts'

export const accountId = z.string().min(1).max(ACCOUNT_ID_MAX)

/** Most entries of one segment; a longer backlog goes up in several. */
export const SEGMENT_ENTRIES_MAX = 1_000

/**
 * Most JSON of one segment, and of its parts, bytes: in base64url, signed and sent with a nonce it fits the body of a sync.
 * One entry may be larger than its part by itself; wants have what is left.
 */
export const SEGMENT_BYTES_MAX = 6_150_000
export const SEGMENT_ENTRIES_BYTES_MAX = 2_000_000
export const SEGMENT_COUNTERS_BYTES_MAX = 1_500_000
export const SEGMENT_SESSIONS_BYTES_MAX = 1_000_000
export const SEGMENT_WANTS_BYTES_MAX = 1_000_000
export const SEGMENT_NEEDS_BYTES_MAX = 500_000

/** Most text of the entries of one segment, in UTF-16 units; one entry may be larger than this by itself. */
export const SEGMENT_TEXT_MAX = 1_000_000

/** Most accounts that one segment may name in its counters, and in its wants. */
export const SEGMENT_ACCOUNTS_MAX = 20_000

/** Most waiting requests that one segment may ask for, and most accounts that one of them may charge. */
export const SEGMENT_NEEDS_MAX = 1_000
export const NEED_ACCOUNTS_MAX = 1_500

/**
 * Body of a sync after decompression, bytes: a full segment and the answer to it, shown again, have place in it. No answer is
 * longer than its parts allow: grants name wants of the segment, and of the other lists each is bounded.
 */
export const SYNC_BODY_BYTES_MAX = 16 * 1024 * 1024

/** Most accounts that one answer asks tokens back of; more follow when they are back. */
export const RELEASES_MAX = 1_000

/** Most signed answers that go with one segment. */
export const PROOFS_MAX = 32

/** Largest signed policy that a device shows to a cloud that may have forgotten it, characters. */
export const RULES_SHOWN_MAX = 1_000_000

/** Body of `POST .../devices/{deviceId}/sync`. `nonce` is fresh for each attempt and comes back in the signed time. */
export const syncRequest = z
  .strictObject({
    segment: z.string().min(1),
    nonce: z.string().min(16).max(64),
    /**
     * Answers that the cloud itself has signed for this device, compact JWS: a cloud that was restored from a backup enters
     * again what it granted with them. The one to this very segment becomes the answer once more. Or policies that it has
     * signed, of a revision above its newest one.
     */
    proofs: z.array(z.string().min(1)).max(PROOFS_MAX).optional(),
  })
  .meta({ id: 'SyncRequest' })

const entryRange = z.strictObject({
  first: z.int().min(1),
  /** Chain head before the first and after the last of them. */
  previousHash: hashText,
  head: hashText,
  bodies: z.array(z.string()).max(SEGMENT_ENTRIES_MAX),
})

/**
 * The remnant of an earlier incarnation: entries that its own chain could not deliver, because it was forked or refused. Their
 * numbers and their chain are those of that incarnation. Each is billed once, by its chained hash, whoever delivers it. There
 * may be none, when the device has only to say that there are no more.
 */
const remnant = z.strictObject({
  incarnation: z.int().min(1),
  entries: entryRange,
  /**
   * The cloud has lost the entries before the first one, and the device no longer keeps them: what its counters were then. They come
   * before the entries, `isLast` with the last of them. Left out where nothing is missing.
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
   * Everything that was recorded in that incarnation is delivered with this: if nobody else has written in it, the cloud closes it
   * exactly. False also for what a restored device has left of it.
   */
  final: z.boolean(),
})

/** Payload of the JWS of kind `segment`, signed by the device key. */
export const segment = z.strictObject({
  deviceId: uuid,
  incarnation: z.int().min(1),
  /** 1, 2, 3 ... per incarnation. */
  seq: z.int().min(1),
  /** SHA-256 of the payload of the segment before; the chain start for the first. */
  previousHash: hashText,
  /** Random: two copies of one device diverge with their first segment. */
  salt: z.string().min(16).max(64),
  bootId: z.string().max(64),
  /** The device's view of time when it sealed. `latest` null: unbounded. */
  clock: z.strictObject({ now: instant, earliest: instant, latest: instant.nullable() }),
  /** Absolute values, as of the last entry in here, of every account that changed since the segment before. */
  counters: z
    .array(z.strictObject({ account: accountId, used: microText, refunded: microText, returned: microText }))
    .max(SEGMENT_ACCOUNTS_MAX),
  /** Ledger entries `first` .. `first + bodies.length - 1`, each the JSON text of an {@link entryBody}. */
  entries: entryRange,
  /** While there are any, a segment carries these and no entries of its own. */
  remnant: remnant.nullable(),
  /** Entries recorded after the last one in here, and other remnants: still to come. */
  backlog: z.int().min(0),
  /** Term of a grant: everything behind this segment was decided after the device had taken it. 0: nothing is said. */
  grantTerm: z.int().min(0),
  /** What the device would like to hold in advance; "0" only asks how much the pool has. */
  wants: z.array(z.strictObject({ account: accountId, wanted: microText })).max(SEGMENT_ACCOUNTS_MAX),
  /**
   * What waiting requests would charge, in the order in which they came. Each gets what its accounts lack from all of them
   * or from none.
   */
  needs: z
    .array(
      z
        .array(z.strictObject({ account: accountId, amount: microText }))
        .min(1)
        .max(NEED_ACCOUNTS_MAX),
    )
    .max(SEGMENT_NEEDS_MAX),
  /** Revision in force on the device, per instance; 0 for none. */
  policies: z.array(z.strictObject({ instanceId: uuid, revision: z.int().min(0) })).max(1000),
  /** Sessions that changed since the segment before, each as it stands. */
  sessions: z.array(sessionSnapshot).max(SEGMENT_SESSIONS_MAX).default([]),
  /** The last segment of a fenced incarnation: nothing follows it, and the cloud closes the incarnation exactly. */
  final: z.boolean(),
})
export type Segment = z.infer<typeof segment>
export type SegmentWire = z.input<typeof segment>

/**
 * One line of the device's ledger: an access request as decided, with refusals, a refund, a burn, or a change of a session
 * that moves no tokens (`session`: no items, no postings). Never edited. The postings on the account of a line item add up
 * to what the parts say was charged to it (or, of a refund, given back). A burn is what a power cut may have cost at most:
 * it has postings and no items, and each account burns its own amount.
 */
export const entryBody = z.strictObject({
  n: z.int().min(1),
  kind: z.enum(['access', 'refund', 'session', 'burn']),
  at: instant,
  earliest: instant,
  latest: instant.nullable(),
  instanceId: uuid,
  policyRevision: z.int().min(1),
  correlationId: uuid,
  /** The session that it belongs to, and what happened to it; absent for a one-off request. */
  session: z.strictObject({ id: uuid, event: z.enum(SESSION_EVENTS) }).optional(),
  requester: z.strictObject({ type: plainText(1024), value: plainText(1024) }),
  items: z.array(
    z.strictObject({
      item: plainText(256),
      version: plainText(256),
      /** Decimal text. */
      count: z.string().max(100),
      /** What the formula of a rate table could name; decimal text by name. */
      variables: z.record(z.string().max(64), z.string().max(100)).optional(),
      /** `GRANTED`, `NOT_CHARGED`, or the reason of the refusal. */
      outcome: plainText(64),
      /** Micro-tokens. */
      total: microText,
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
      /** How much of it the grant did not hold: spent by the offline policy of the line item. Absent: nothing. */
      aboveGrant: microText.optional(),
    }),
  ),
})
export type EntryBody = z.infer<typeof entryBody>
export type EntryBodyWire = z.input<typeof entryBody>

/** Answer to an attach or a sync: two signed documents, the second of which is fresh for each attempt. */
export const signedAnswer = z
  .strictObject({ answer: z.string().min(1), time: z.string().min(1) })
  .meta({ id: 'SignedAnswer', description: 'Two compact JWS: the answer, and the time of this attempt.' })

/** Payload of the JWS of kind `time`, signed by the cloud: of this attempt, and of no other answer than this one. */
export const signedTime = z.strictObject({
  nonce: z.string(),
  time: instant,
  /** SHA-256 of the text of the signed answer that it goes with. */
  answer: hashText,
  /** Null: nobody holds the device back. */
  hold: deviceHold.nullable().default(null),
})

const grant = z.strictObject({
  /** Rises with each grant of the incarnation; a device takes only a higher one. */
  term: z.int().min(1),
  /** Powered-on time, in ms since receipt, for which the device may spend what it holds. */
  lifetimeMs: z.int().min(0),
  /** The same end by the wall clock. */
  expiresAt: instant,
  /** Cumulative grants; accounts not named keep theirs. */
  accounts: z.array(
    z.strictObject({
      account: accountId,
      granted: microText,
      /** The pool has nothing left to grant beyond this: a shortage on the device is a shortage of the pool. */
      exhausted: z.boolean(),
      /** How much more the pool could have given to a waiting request at this moment. */
      available: microText,
      /** Not counted down: overdraft without limit, metered only. */
      unlimited: z.boolean(),
      /**
       * At most so many of the unspent tokens, the last ones of `granted`, are overdraft: so much is out beyond the quantity of the
       * line item, on all devices together. Left out when there are none.
       */
      overdraft: microText.optional(),
    }),
  ),
})
export type Grant = z.infer<typeof grant>

/** What the cloud asks of a device: `release` (give back all room), `sync` (come again at once). */
const directive = z.enum(['release', 'sync'])

/** Give back what is held of the account beyond `keep`: others need it. A device may keep less, and not more. */
const release = z.strictObject({ account: accountId, keep: microText })

/**
 * What the cloud has taken in, in so many words: with its signature it proves that these entries are billed. A device
 * forgets a segment only when it holds the receipt, and not before `retainUntil`.
 */
const receipt = z.strictObject({
  incarnation: z.int().min(1),
  seq: z.int().min(1),
  /** Of the segment. */
  hash: hashText,
  /** Of its own entries; `to` is `from - 1` when it held none. `head` is the chain head after the last of them. */
  entries: z.strictObject({ from: z.int().min(1), to: z.int().min(0), head: hashText }),
  /** Until then the cloud may ask for the segment again, POSIX ms. */
  retainUntil: instant,
})

const common = { deviceId: uuid, incarnation: z.int().min(1) }

/**
 * So many entries that came with the segment, of an earlier incarnation or of a fork, are not billed: the cloud keeps them as
 * evidence. Left out when there are none.
 */
const unbilled = z.int().min(1).optional()

/** Payload of the JWS of kind `sync-answer`, signed by the cloud. */
export const syncAnswer = z.discriminatedUnion('outcome', [
  /** The segment is merged: everything in it is billed. */
  z.strictObject({
    outcome: z.literal('MERGED'),
    ...common,
    seq: z.int().min(1),
    hash: hashText,
    receipt,
    grant: grant.nullable(),
    /** Newest revision in the cloud, per instance of the device. */
    policies: z.array(z.strictObject({ instanceId: uuid, revision: z.int().min(0) })),
    directives: z.array(directive),
    releases: z.array(release).max(RELEASES_MAX),
    /** What the cloud's administrator wants of sessions that the device keeps. */
    sessions: z.array(sessionOrder).max(SEGMENT_SESSIONS_MAX).default([]),
    /** Thumbprint of the key that an administrator wants replaced: of no effect for a device that has another one. */
    replaceKey: thumbprintText.optional(),
    /** The device should come again within this time. */
    nextSyncMs: z.int().min(0),
    time: instant,
    unbilled,
  }),
  /** A segment at or below what is known, not the last one: nothing changed. `seq` is what the cloud knows. */
  z.strictObject({ outcome: z.literal('KNOWN'), ...common, seq: z.int().min(0) }),
  /** The cloud has not seen the segments before this one: send again from `seq + 1`. */
  z.strictObject({ outcome: z.literal('BEHIND'), ...common, seq: z.int().min(0) }),
  /**
   * The incarnation is no longer current. `seq` is the last one merged. Not closed: stop spending, seal what is left as
   * final, send it, attach anew. Closed: attach anew. In either case the segment that this answers is acknowledged:
   * merged, or, when `forked` and `hash` is not its hash, kept as evidence with its entries billed as a branch of their own.
   */
  z.strictObject({
    outcome: z.literal('FENCED'),
    ...common,
    seq: z.int().min(0),
    hash: hashText,
    forked: z.boolean(),
    closed: z.boolean(),
    /** Of the segment that this answers, when it was merged. */
    receipt: receipt.nullable(),
    unbilled,
  }),
  /**
   * The segment with this hash does not add up and was kept as evidence; nothing of it counts, and the incarnation earns
   * nothing more. What it holds may be delivered as a remnant, with segments of the next incarnation.
   */
  z.strictObject({ outcome: z.literal('REJECTED'), ...common, hash: hashText, problem: z.string().max(1000) }),
])
export type SyncAnswer = z.infer<typeof syncAnswer>
export type SyncAnswerWire = z.input<typeof syncAnswer>
