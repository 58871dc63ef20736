/** Stores segments as evidence, up to the limits per epoch and device. The device is locked. */
import {
  EVIDENCE_BYTES_MAX,
  EVIDENCE_OF_DEVICE_BYTES_MAX,
  EVIDENCE_OF_DEVICE_SEGMENTS_MAX,
  EVIDENCE_SEGMENTS_MAX,
} from '../../devices/limits.ts'
import type { Evidence } from '../../storage/device-records.ts'
import type { MergeContext } from '../merge-context.ts'

type Written = Pick<Evidence, 'epoch' | 'kind' | 'problem'> &
  Partial<Pick<Evidence, 'recordedHash' | 'recordedDocument'>>

export async function keepEvidence(
  { tx, device, segment, now }: Pick<MergeContext, 'tx' | 'device' | 'segment' | 'now'>,
  { recordedHash = null, recordedDocument = null, ...written }: Written,
): Promise<void> {
  const { document, header } = segment
  const bytes = Buffer.byteLength(document) + Buffer.byteLength(recordedDocument ?? '')
  const ofEpoch = await tx.edge.evidence.size(device.id, written.epoch)
  if (ofEpoch.segments >= EVIDENCE_SEGMENTS_MAX || ofEpoch.bytes + bytes > EVIDENCE_BYTES_MAX) return
  const ofDevice = await tx.edge.evidence.size(device.id)
  if (ofDevice.segments >= EVIDENCE_OF_DEVICE_SEGMENTS_MAX) return
  if (ofDevice.bytes + bytes > EVIDENCE_OF_DEVICE_BYTES_MAX) return
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
