import type { TestDevice } from './test-device.ts'

/** From now on, the device has a backup that is older than what the cloud knows. It runs from it after a restart. */
export async function restoreBackup(device: TestDevice): Promise<void> {
  await device.charge(1_000_000n)
  await device.sync()
  const backup = device.disk.copy()
  await device.charge(2_000_000n)
  await device.sync()
  device.disk = backup
}

/**
 * The device starts from the backup, and makes seven charges without the network. It delivers them as an undelivered range, two
 * entries in each segment.
 */
export async function restoreAndSpend(device: TestDevice): Promise<void> {
  await restoreBackup(device)
  device.disk.segmentEntriesMax = 2
  device.network.down = true
  await device.restart()
  for (let n = 0; n < 7; n += 1) await device.charge(10_000n)
  device.network.down = false
}
