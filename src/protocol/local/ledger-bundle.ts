/**
 * What a device holds as proof of what it has done, as one JSON document: the export of its ledger, and what `tallygate
 * verify` checks. It comes from a file that anybody may have written, so nothing in it is believed before it was checked.
 * Amounts are decimal text of micro-tokens, hashes lower-case hexadecimal, instants POSIX ms.
 */
import { z } from 'zod'
import { hashText } from '../signing.ts'

const amount = z.string().regex(/^-?\d{1,19}$/)
const count = z.int().min(0)
const text = z.string()

export const ledgerBundle = z.strictObject({
  format: z.literal('tallygate-ledger'),
  version: z.literal(1),
  /** Null: the device is not enrolled. */
  deviceId: text.nullable(),
  /** Public keys of the cloud, JWK as text, as the device has pinned them. */
  trustedKeys: z.array(text),
  state: z.strictObject({
    incarnation: count,
    /** Id of the entry before the first one of the incarnation. */
    entryBase: count,
    lastEntry: count,
    entryHead: hashText,
    sealedEntry: count,
    sealedHead: hashText,
    ackedEntry: count,
    ackedHead: hashText,
    lastSeq: count,
    segmentHead: hashText,
  }),
  accounts: z.array(
    z.strictObject({
      account: text,
      granted: amount,
      used: amount,
      refunded: amount,
      returned: amount,
      /** What may be spent above the grant until the cloud has heard of it. */
      allowance: amount,
      /** Not counted down: more may be spent than is granted. */
      unlimited: z.boolean(),
      /** As of the last entry that a segment holds. */
      sealedUsed: amount,
      sealedRefunded: amount,
      /** The signed answer that proves `granted`; null where there is none any more. */
      proof: text.nullable(),
    }),
  ),
  /** Of all incarnations, in the order of recording; the oldest may have been forgotten. */
  entries: z.array(z.strictObject({ id: count, n: count, body: text })),
  segments: z.array(
    z.strictObject({
      incarnation: count,
      seq: count,
      hash: hashText,
      state: z.enum(['UNACKNOWLEDGED', 'ACKNOWLEDGED', 'ABANDONED']),
      document: text,
      /** The receipt, as the cloud signed it. */
      answer: text.nullable(),
    }),
  ),
})
export type LedgerBundle = z.infer<typeof ledgerBundle>
