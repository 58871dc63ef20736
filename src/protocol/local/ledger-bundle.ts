/** The exported ledger of a device, input of `tallygate verify`: not trusted. Amounts are micro-tokens, instants POSIX ms. */
import { z } from 'zod'
import { hashText } from '../signing.ts'

const amount = z.string().regex(/^-?\d{1,19}$/)
const count = z.int().min(0)
const text = z.string()

export const ledgerBundle = z.strictObject({
  format: z.literal('tallygate-ledger'),
  version: z.literal(1),
  deviceId: text.nullable(),
  trustedKeys: z.array(text),
  /** Keys that the cloud has replaced; they signed earlier answers. */
  formerKeys: z.array(text),
  state: z.strictObject({
    epoch: count,
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
  /** Null: none. `agedMs`: powered-on time counted against the lifetime. */
  grant: z.strictObject({ term: count, lifetimeMs: count, expiresAt: z.int(), agedMs: z.int() }).nullable(),
  signedAnswers: z.array(text),
  policies: z.array(z.strictObject({ instanceId: text, revision: z.int(), document: text, confirmedAt: z.int() })),
  pastPolicies: z.array(text),
  accounts: z.array(
    z.strictObject({
      account: text,
      granted: amount,
      used: amount,
      refunded: amount,
      returned: amount,
      /** Overspend allowed until the next contact with the cloud. */
      allowance: amount,
      unlimited: z.boolean(),
      exhausted: z.boolean(),
      /** At most this many tokens of `granted` are overdraft. */
      overdraft: amount,
      /** As of the last sealed entry. */
      sealedUsed: amount,
      sealedRefunded: amount,
      sealedReturned: amount,
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
      answer: text.nullable(),
    }),
  ),
})
export type LedgerBundle = z.infer<typeof ledgerBundle>
