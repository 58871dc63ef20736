/**
 * The exported ledger of a device, input of `tallygate verify`. The file is untrusted: check everything. Amounts are
 * decimal text of micro-tokens, hashes lower-case hexadecimal, instants POSIX ms.
 */
import { z } from 'zod'
import { hashText } from '../signing.ts'

const amount = z.string().regex(/^-?\d{1,19}$/)
const count = z.int().min(0)
const text = z.string()

export const ledgerBundle = z.strictObject({
  format: z.literal('tallygate-ledger'),
  version: z.literal(1),
  /** Null: not enrolled. */
  deviceId: text.nullable(),
  /** Pinned public keys of the cloud, JWK as text. */
  trustedKeys: z.array(text),
  state: z.strictObject({
    epoch: count,
    /** Id of the last entry before this epoch. */
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
      /** Overspend allowed until the next contact with the cloud. */
      allowance: amount,
      /** Usage may exceed the grant. */
      unlimited: z.boolean(),
      /** As of the last sealed entry. */
      sealedUsed: amount,
      sealedRefunded: amount,
      /** Signed answer that proves `granted`; null if no longer kept. */
      proof: text.nullable(),
    }),
  ),
  /** All epochs, in order of recording; the oldest may be deleted. */
  entries: z.array(z.strictObject({ id: count, n: count, body: text })),
  segments: z.array(
    z.strictObject({
      epoch: count,
      seq: count,
      hash: hashText,
      state: z.enum(['UNACKNOWLEDGED', 'ACKNOWLEDGED', 'ABANDONED']),
      document: text,
      /** Signed receipt of the cloud. */
      answer: text.nullable(),
    }),
  ),
})
export type LedgerBundle = z.infer<typeof ledgerBundle>
