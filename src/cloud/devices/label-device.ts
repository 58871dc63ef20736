/** Changes the labels of a device. They are for administrators: the device never learns of them. */
import type { z } from 'zod'
import { type labelChange, changedLabels } from '../../protocol/edge/labels.ts'
import { recordChange } from '../storage/audit.ts'
import type { DeviceCommands } from './devices.ts'
import { lockDevice } from '../storage/require-record.ts'

/** @throws CodedError NOT_FOUND, LABEL_INVALID for too many */
export async function labelDevice(
  { store, now }: DeviceCommands,
  deviceId: string,
  change: z.infer<typeof labelChange>,
): Promise<void> {
  const at = now()
  await store.transaction(async (tx) => {
    const device = await lockDevice(tx, deviceId)
    await tx.edge.devices.label(deviceId, changedLabels(device.labels, change))
    await recordChange(tx, at, { action: 'LABEL_DEVICE', deviceId, detail: change })
  })
}
