/**
 * A twin that was restored from a backup together with its sales mark finds out by itself: a device shows what the twin has
 * signed and does not know. From then on nothing is sold of the instances of the device, because nothing shows how much was
 * sold by the twin itself. The rules continue with revisions above all that can have been forgotten.
 */
import type { AccountId } from '../../../core/accounts/account.ts'
import type { Proof, ShownRules } from '../open-proofs.ts'
import type { Device, Epoch } from '../../storage/device-records.ts'
import { passForgottenRevisions } from '../../policy/bump-policy-revision.ts'
import type { Transaction } from '../../storage/store.ts'
import { recoversSince } from './recovery.ts'

/**
 * A segment of this epoch that the twin has acknowledged and does not know, a grant, or rules: nothing but a restore can
 * be the reason, since what is signed leaves only after its commit. No news where devices have to be heard from since a later
 * instant.
 *
 * @returns the instances of which a recovery begins
 */
export async function noticeRestore(
  tx: Transaction,
  device: Device,
  epoch: Epoch,
  proofs: readonly Proof[],
  rules: readonly ShownRules[],
  now: number,
): Promise<readonly string[]> {
  const { number, lastSeq, term } = epoch
  const forgotten = proofs.filter(
    ({ answer }) =>
      answer.epoch === number &&
      ((answer.receipt?.epoch === number && answer.receipt.seq > lastSeq) ||
        (answer.outcome === 'MERGED' && (answer.grant?.term ?? 0) > term)),
  )
  const shown = forgotten.map(({ answer }) => (answer.outcome === 'MERGED' ? answer.time : 0))
  const restored: string[] = []
  for (const instanceId of [...device.instanceIds].sort()) {
    const known = (await tx.policyRevisions.get(instanceId))?.revision ?? 0
    const newer = rules.filter((each) => each.instanceId === instanceId && each.revision > known)
    const signedAt = Math.max(-1, ...shown, ...newer.map(({ issuedAt }) => issuedAt))
    if (signedAt < 0) continue
    const recovery = await tx.edge.recoveries.get(instanceId)
    const isKnown = recovery !== undefined && recovery.since > signedAt
    if (isKnown && newer.length === 0) continue
    // The clock of this host may be behind the one by which they were raised. Rules in memory must know of the recovery.
    await passForgottenRevisions(tx, instanceId, now, Math.max(0, ...newer.map(({ revision }) => revision)))
    if (isKnown) continue
    const isProven = recovery !== undefined && (await areWithheld(tx, epoch, forgotten))
    await tx.edge.recoveries.begin(instanceId, await recoversSince(tx, now), isProven ? null : 'MARK')
    restored.push(instanceId)
  }
  if (restored.length > 0) {
    await tx.edge.recoveries.restored(now)
    await tx.edge.audit.append({ at: now, by: 'twin', action: 'NOTICE_RESTORE', deviceId: device.id, sessionId: null })
  }
  return restored
}

/** The sales mark has counted these grants already, before a clock that was ahead of the one of now. */
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
