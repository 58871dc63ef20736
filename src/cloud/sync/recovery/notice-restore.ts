import { recordChange } from '../../storage/audit.ts'
import { CLOUD } from '../../storage/audit-records.ts'
import type { AccountId } from '../../../core/accounts/account.ts'
import { type Proof, type Shown, isForgotten } from '../open-proofs.ts'
import type { MergeContext } from '../merge-context.ts'
import type { Epoch } from '../../storage/device-records.ts'
import { passForgottenRevisions } from '../../policy/bump-policy-revision.ts'
import type { Transaction } from '../../storage/store.ts'

/**
 * A device shows signed documents that the cloud does not know. They leave only after their commit, so this proves a
 * restore: the device's instances sell nothing, unless a later recovery already waits for devices.
 * @returns the instances that start a recovery
 */
export async function noticeRestore(
  { deps, tx, device, epoch, now }: Pick<MergeContext, 'deps' | 'tx' | 'device' | 'epoch' | 'now'>,
  { proofs, rules }: Shown,
): Promise<readonly string[]> {
  const forgotten = proofs.filter((proof) => isForgotten(epoch, proof))
  const shown = forgotten.map(({ answer }) => (answer.outcome === 'MERGED' ? answer.time : 0))
  const restored: string[] = []
  let at = now
  for (const instanceId of [...device.instanceIds].sort()) {
    const known = (await tx.policyRevisions.get(instanceId))?.revision ?? 0
    const newer = rules.filter((each) => each.instanceId === instanceId && each.revision > known)
    const signedAt = Math.max(-1, ...shown, ...newer.map(({ issuedAt }) => issuedAt))
    if (signedAt < 0) continue
    const recovery = await tx.edge.recoveries.get(instanceId)
    // A device that has reported in this recovery lost its report in another restore, whatever the clock of this one was.
    const isLater = recovery !== undefined && epoch.recovery >= recovery.number && shown.some((time) => time > 0)
    const isKnown = recovery !== undefined && recovery.since > signedAt && !isLater
    if (isKnown && newer.length === 0) continue
    // This host's clock may be behind the previous one. Cached rules must learn of the recovery.
    await passForgottenRevisions(tx, instanceId, now, Math.max(0, ...newer.map(({ revision }) => revision)))
    if (isKnown) continue
    const isProven = recovery !== undefined && (await areWithheld(tx, epoch, forgotten))
    await tx.edge.recoveries.begin(instanceId, now, isProven ? null : 'MARK')
    restored.push(instanceId)
    at = Math.max(at, signedAt)
  }
  if (restored.length > 0) {
    await tx.edge.recoveries.restored(at, deps.trustsClock())
    await recordChange(tx, now, { action: 'NOTICE_RESTORE', deviceId: device.id, by: CLOUD })
  }
  return restored
}

/** The sales mark already counts these grants, by a clock that was ahead. */
async function areWithheld(
  tx: Transaction,
  { deviceId, number }: Epoch,
  forgotten: readonly Proof[],
): Promise<boolean> {
  const granted = new Map<AccountId, bigint>()
  for (const { answer } of forgotten) {
    for (const { account, granted: amount } of answer.outcome === 'MERGED' ? (answer.grant?.accounts ?? []) : []) {
      if (amount > (granted.get(account) ?? 0n)) granted.set(account, amount)
    }
  }
  const accounts = [...granted.keys()]
  const known = await tx.edge.deviceAccounts.get(deviceId, number, accounts)
  const pools = await tx.accounts.get(accounts)
  return accounts.every((account) => {
    const lost = (granted.get(account) ?? 0n) - (known.get(account)?.granted ?? 0n)
    return lost <= (pools.get(account)?.withheld ?? 0n)
  })
}
