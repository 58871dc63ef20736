/** Proofs that devices show to a cloud that may have lost them; only documents signed by the cloud count. */
import { z } from 'zod'
import { type SyncAnswer, syncAnswer } from '../../protocol/edge/sync.ts'
import { type DocumentKind, openDocument } from '../../protocol/signing.ts'
import type { Keyring } from '../devices/keyring.ts'
import type { GiveWay } from '../runtime/give-way.ts'
import type { Device, Epoch } from '../storage/device-records.ts'

export interface Proof {
  readonly document: string
  readonly answer: Extract<SyncAnswer, { outcome: 'MERGED' | 'FENCED' }>
}

/** It names a segment or a grant of the epoch that the cloud does not know. */
export function isForgotten({ number, lastSeq, term }: Epoch, { answer }: Proof): boolean {
  if (answer.epoch !== number) return false
  if (answer.receipt?.epoch === number && answer.receipt.seq > lastSeq) return true
  return answer.outcome === 'MERGED' && (answer.grant?.term ?? 0) > term
}

export interface ShownRules {
  readonly instanceId: string
  readonly revision: number
  readonly issuedAt: number
}

export interface Shown {
  readonly proofs: readonly Proof[]
  readonly rules: readonly ShownRules[]
}

const shownRules = z.object({ instanceId: z.string(), revision: z.int(), issuedAt: z.int() })

/** Those that the cloud has signed for this device or its instances. */
export async function openShown(
  keys: Keyring,
  { id, instanceIds }: Pick<Device, 'id' | 'instanceIds'>,
  documents: readonly string[],
  giveWay: GiveWay = () => undefined,
): Promise<Shown> {
  const proofs: Proof[] = []
  const rules: ShownRules[] = []
  for (const document of documents) {
    await giveWay()
    const answer = syncAnswer.safeParse(await openTrusted(keys, 'sync-answer', document)).data
    const isProof = answer?.outcome === 'MERGED' || answer?.outcome === 'FENCED'
    if (isProof && answer.deviceId === id) proofs.push({ document, answer })
    const shown = shownRules.safeParse(await openTrusted(keys, 'policy', document)).data
    if (shown !== undefined && instanceIds.includes(shown.instanceId)) rules.push(shown)
  }
  return { proofs, rules }
}

/** The content of a document that the cloud has signed; undefined for any other. */
async function openTrusted(keys: Keyring, kind: DocumentKind, document: string): Promise<unknown> {
  for (const { publicKey } of keys.trusted) {
    const text = await openDocument(kind, document, publicKey)
    if (text !== undefined) return JSON.parse(text)
  }
  return undefined
}
