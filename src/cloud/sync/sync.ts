/**
 * Accepts a device's segment in one transaction: no token is granted that the pool does not have, nothing is billed
 * twice, and a retry gets the bytes of the first response.
 */
import { namedKey } from '../../protocol/signing.ts'
import { openSegment } from './open-segment.ts'
import type { Device } from '../storage/device-records.ts'
import { openShown } from './open-proofs.ts'
import type { MergeResult, SyncDeps } from './merge-context.ts'
import type { OpenedSync, SyncOutcome, SyncResult } from './receive-segment.ts'

export interface WatchedSyncDeps extends SyncDeps {
  /** @param opened pools that are new with the segment */
  readonly onOutcome?: (outcome: SyncOutcome, opened: number) => void
  /** Called after the commit: the device has proven that the cloud lost documents of these instances. */
  readonly onRestored?: (deviceId: string, instanceIds: readonly string[]) => void
  readonly syncBatcher: { receive(opened: OpenedSync): Promise<SyncResult> }
}

/** @throws CodedError DEVICE_REVOKED, GRANTS_FORGOTTEN */
export async function sync(
  deps: WatchedSyncDeps,
  device: Device,
  document: string,
  proofDocuments: readonly string[] = [],
): Promise<MergeResult & Pick<Device, 'suspension'>> {
  const opening = await openSegment(device, await sealingKeyOf(deps, device, document), document, deps.giveWay)
  if (!opening.opened) {
    deps.onOutcome?.('UNREADABLE', 0)
    return { accepted: false, problem: opening.problem, suspension: device.suspension }
  }
  const request: OpenedSync = {
    deviceId: device.id,
    segment: opening.segment,
    shown: await openShown(deps.keys, device, proofDocuments, deps.giveWay),
    now: deps.now(),
    present: deps.present(),
  }
  const { outcome, merge, restored, opened, suspension } = await deps.syncBatcher.receive(request)
  deps.onOutcome?.(outcome, opened)
  if (restored.length > 0) deps.onRestored?.(device.id, restored)
  return { ...merge, suspension }
}

/** A resent segment may have been sealed by a key that was replaced since; its sender has authenticated. */
async function sealingKeyOf(
  { store }: Pick<SyncDeps, 'store'>,
  device: Device,
  document: string,
): Promise<Device['publicKey']> {
  const named = namedKey(document)
  if (named === undefined || named === device.thumbprint) return device.publicKey
  const found = await store.read((reader) => reader.edge.devices.withKey(named))
  return found?.device.id === device.id ? found.publicKey : device.publicKey
}
