/**
 * Settles long inactive epochs: their tokens count as used (default) or return to the pool, at a reported risk. After a
 * restore, inactivity counts from the restore, because later grants may be lost. Nothing is settled before the time of the
 * restore is known.
 */
import { recordChange } from '../../storage/audit.ts'
import type { Policies } from '../../policy/load-policy.ts'
import type { SettlementStateWire } from '../../../protocol/edge/administration.ts'
import type { Reader, Store } from '../../storage/store.ts'
import { fenced } from '../../devices/epochs.ts'
import type { Settlement } from '../../storage/device-records.ts'
import { settleEpoch } from './settle-epoch.ts'

export interface ExpireInactive {
  readonly store: Pick<Store, 'read' | 'transaction'>
  readonly policies: Pick<Policies, 'lockSomeShared'>
  readonly present: () => number
  readonly afterMs: number
  readonly as: Settlement
  /** Percent of devices settled within {@link SETTLEMENT_WINDOW_MS} without confirmation. */
  readonly percentMax: number
  readonly onPaused?: (paused: boolean) => void
}

const SETTLEMENT_WINDOW_MS = 24 * 60 * 60_000

/** Settles one epoch in one transaction; false: none is due. Safe on any number of nodes. */
export async function expireNextInactive(parts: ExpireInactive): Promise<boolean> {
  const now = parts.present()
  const before = now - parts.afterMs
  const outcome = await parts.store.transaction(async (tx): Promise<'NONE_DUE' | 'SETTLED' | 'PAUSED'> => {
    const due = await tx.edge.epochs.nextInactive(before)
    if (due === undefined) return 'NONE_DUE'
    if (await needsConfirmation(tx, due.quietSince, parts, now)) return 'PAUSED'
    const device = await tx.edge.devices.lock(due.deviceId)
    if (device === undefined) throw new Error('invariant: devices are never deleted')
    const epoch = await tx.edge.epochs.get(due.deviceId, due.number)
    // Another node settled it, or the device reported.
    if (epoch?.settledAt !== null) return 'SETTLED'
    if (epoch.status === 'CLOSED' || epoch.quietSince >= before) return 'SETTLED'
    const rules = await parts.policies.lockSomeShared(tx, device.instanceIds, now)
    const over = fenced(epoch, 'SILENT', { now, present: epoch.quietSince })
    await settleEpoch({ tx, device, epoch: over, now, rules }, parts.as)
    return 'SETTLED'
  })
  parts.onPaused?.(outcome === 'PAUSED')
  return outcome === 'SETTLED'
}

/** Many devices inactive at once are probably cut off or misjudged by a wrong clock: an administrator decides. */
async function needsConfirmation(
  reader: Reader,
  quietSince: number,
  { afterMs, percentMax }: Pick<ExpireInactive, 'afterMs' | 'percentMax'>,
  now: number,
): Promise<boolean> {
  const confirmed = await reader.sweeps.settlementConfirmed()
  if (confirmed !== null && quietSince < confirmed) return false
  const { due, settled, allowed } = await settlementLoad(reader, afterMs, percentMax, now)
  return due + settled > allowed
}

async function settlementLoad(reader: Reader, afterMs: number, percentMax: number, now: number) {
  const load = await reader.edge.epochs.settlementLoad(now - afterMs, now - SETTLEMENT_WINDOW_MS)
  const { due, unsettled, settled } = load
  return { due, settled, allowed: Math.max(1, Math.floor(((unsettled + settled) * percentMax) / 100)) }
}

export async function showSettlement({
  store,
  present,
  afterMs,
  percentMax,
}: Pick<ExpireInactive, 'store' | 'present' | 'afterMs' | 'percentMax'>): Promise<SettlementStateWire> {
  const at = present()
  return store.read(async (reader) => {
    const load = await settlementLoad(reader, afterMs, percentMax, at)
    const next = await reader.edge.epochs.nextInactive(at - afterMs)
    const paused = next !== undefined && (await needsConfirmation(reader, next.quietSince, { afterMs, percentMax }, at))
    return { paused, ...load }
  })
}

export async function confirmSettlement({
  store,
  present,
  afterMs,
}: Pick<ExpireInactive, 'store' | 'present' | 'afterMs'>): Promise<void> {
  const at = present()
  await store.transaction(async (tx) => {
    await tx.sweeps.confirmSettlement(at - afterMs)
    await recordChange(tx, at, { action: 'CONFIRM_SETTLEMENT' })
  })
}
