/**
 * Limits what one device key can make the cloud store with segments that are not merged, and with accounts of requesters
 * that it invents. Other segments are not limited, however many there are: they are the usage to bill. In memory: each node
 * has its own limits.
 */
import type { ServerResponse } from 'node:http'
import { CodedError } from '../../../protocol/errors.ts'
import type { SyncOutcome } from '../../sync/receive-segment.ts'

/** Concurrent syncs of a device: an agent has one, and may repeat one whose response was lost. */
const SYNCS_OF_ONE_DEVICE_MAX = 2

const BUSY_RETRY_AFTER_MS = 1_000

/** Bytes of a device's segments that may be stored without being merged: at once, and per hour. */
export const UNMERGED_BYTES_MAX = 64 * 1024 * 1024
const UNMERGED_BYTES_PER_MS = (16 * 1024 * 1024) / (60 * 60_000)

/** A shorter segment, or one that leaves no trace, counts as so many bytes. */
const UNMERGED_BYTES_MIN = 512 * 1024

/** An account that a segment opens. One segment can open as many as it can name. */
const OPENED_BYTES = 3 * 1024

/** They leave evidence, and branch entries. */
const STORED: ReadonlySet<SyncOutcome> = new Set<SyncOutcome>(['FORK', 'REJECTED'])

interface Known {
  inProgress: number
  /** Unmerged bytes at the time. */
  bytes: number
  at: number
}

export class SyncGate {
  readonly #now: () => number
  readonly #devices = new Map<string, Known>()

  /** @param now POSIX ms. It may step back, when a clock that was ahead is confirmed */
  constructor(now: () => number) {
    this.#now = now
  }

  /**
   * Before the body of a sync is read.
   * @throws CodedError KEY_BUSY, SYNC_TOO_OFTEN
   */
  enter(deviceId: string, response: Pick<ServerResponse, 'once'>): void {
    const device = this.#deviceOf(deviceId)
    if (device.inProgress >= SYNCS_OF_ONE_DEVICE_MAX) {
      throw new CodedError('KEY_BUSY', `This device has ${SYNCS_OF_ONE_DEVICE_MAX} syncs in progress.`, {
        details: { retryAfterMs: BUSY_RETRY_AFTER_MS },
      })
    }
    const above = device.bytes + UNMERGED_BYTES_MIN - UNMERGED_BYTES_MAX
    if (above > 0) {
      const message =
        'This device has sent too many segments that cannot be merged, or has named too many new requesters.'
      const retryAfterMs = Math.ceil(above / UNMERGED_BYTES_PER_MS)
      throw new CodedError('SYNC_TOO_OFTEN', message, { details: { deviceId, retryAfterMs } })
    }
    device.inProgress += 1
    this.#devices.set(deviceId, device)
    response.once('close', () => {
      device.inProgress -= 1
      this.#forgetIdle(deviceId)
    })
  }

  count(
    deviceId: string,
    outcome: SyncOutcome,
    { bytes, opened }: { /** Of the segment. */ readonly bytes: number; /** Accounts. */ readonly opened: number },
  ): void {
    let used = opened * OPENED_BYTES
    if (STORED.has(outcome)) used += Math.max(bytes, UNMERGED_BYTES_MIN)
    else if (outcome === 'UNREADABLE') used += UNMERGED_BYTES_MIN
    if (used === 0) return
    const device = this.#deviceOf(deviceId)
    device.bytes += used
    this.#devices.set(deviceId, device)
  }

  #deviceOf(deviceId: string): Known {
    const now = this.#now()
    const device = this.#devices.get(deviceId) ?? { inProgress: 0, bytes: 0, at: now }
    device.bytes = Math.max(0, device.bytes - Math.max(0, now - device.at) * UNMERGED_BYTES_PER_MS)
    device.at = now
    return device
  }

  #forgetIdle(deviceId: string): void {
    const { inProgress, bytes } = this.#deviceOf(deviceId)
    if (inProgress === 0 && bytes === 0) this.#devices.delete(deviceId)
  }
}
