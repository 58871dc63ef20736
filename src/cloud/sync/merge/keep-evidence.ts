/** Stores segments as evidence, up to the limits per epoch. The device is locked. */
import { EVIDENCE_BYTES_MAX, EVIDENCE_SEGMENTS_MAX } from '../../devices/limits.ts'
import type { Evidence } from '../../storage/device-records.ts'
import type { MergeContext } from '../merge-context.ts'

type Written = Pick<Evidence, 'epoch' | 'kind' | 'problem'> &
  Partial<Pick<Evidence, 'recordedHash' | 'recordedDocument'>>

export async function keepEvidence(
  { tx, device, segment, now }: Pick<MergeContext, 'tx' | 'device' | 'segment' | 'now'>,
  { recordedHash = null, recordedDocument = null, ...written }: Written,
): Promise<void> {
  const { document, header } = segment
  const kept = await tx.edge.evidence.size(device.id, written.epoch)
  const bytes = kept.bytes + Buffer.byteLength(document) + Buffer.byteLength(recordedDocument ?? '')
  if (kept.segments >= EVIDENCE_SEGMENTS_MAX || bytes > EVIDENCE_BYTES_MAX) return
  await tx.edge.evidence.keep({
    ...written,
    deviceId: device.id,
    seq: header.seq,
    hash: header.hash,
    recordedHash,
    recordedDocument,
    document,
    receivedAt: now,
  })
}
