/** Answers that a device shows to a twin which may have forgotten them: worth something only with the twin's own signature. */
import { type SyncAnswer, syncAnswer } from '../../../protocol/edge/sync.ts'
import { openDocument } from '../../../protocol/signing.ts'
import type { KeyRing } from './key-ring.ts'

export interface Proof {
  readonly document: string
  readonly answer: Extract<SyncAnswer, { outcome: 'MERGED' | 'FENCED' }>
}

/** Those of the documents that the twin has signed for this device; others prove nothing. */
export async function openProofs(
  keys: KeyRing,
  deviceId: string,
  documents: readonly string[],
): Promise<readonly Proof[]> {
  const proofs: Proof[] = []
  for (const document of documents) {
    const answer = await openAnswer(keys, document)
    if (answer?.deviceId !== deviceId) continue
    if (answer.outcome === 'MERGED' || answer.outcome === 'FENCED') proofs.push({ document, answer })
  }
  return proofs
}

async function openAnswer(keys: KeyRing, document: string): Promise<SyncAnswer | undefined> {
  for (const { publicKey } of keys.trusted) {
    const text = await openDocument('sync-answer', document, publicKey)
    if (text !== undefined) return syncAnswer.safeParse(JSON.parse(text)).data
  }
  return undefined
}
