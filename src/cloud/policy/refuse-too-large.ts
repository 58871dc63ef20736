/** A device must be able to fetch the rules of its instance. */
import { rulesToWire } from '../../protocol/edge/policy-document.ts'
import { bodyError } from '../../protocol/errors.ts'
import type { Transaction } from '../storage/store.ts'
import { rulesOf } from './load-policy.ts'

/** With all rate tables and in base64, they fit into the 16 MiB of an answer, also with offline policies and a further period. */
const RULES_BYTES_MAX = 5_000_000

/** @throws CodedError BAD_REQUEST if the transaction has added too many rules */
export async function refuseTooLarge(tx: Transaction, instanceId: string, now: number): Promise<void> {
  const rules = await rulesOf(tx, instanceId, await tx.edge.offlinePolicies.list(instanceId), now)
  const bytes = Buffer.byteLength(JSON.stringify(rulesToWire(rules)))
  if (bytes <= RULES_BYTES_MAX) return
  throw bodyError(
    `all line items, actions, limits and conditions of an instance have at most ${RULES_BYTES_MAX} bytes of JSON in the document for its devices, and would have ${bytes}. Delete some, reset line items less often, or divide them among several instances`,
  )
}
