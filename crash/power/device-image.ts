/**
 * Checks a device's state directory after a power cut: the agent's code opens it and continues, the audit passes, and
 * everything the device sent before the cut is there.
 */
import { createPublicKey } from 'node:crypto'
import { existsSync, mkdirSync, readFileSync } from 'node:fs'
import { join } from 'node:path'
import { openKeyFile } from '../../src/agent/platform/key-file/key-file.ts'
import { JournalStore } from '../../src/agent/platform/sqlite/journal-store.ts'
import { openDatabase } from '../../src/agent/platform/sqlite/open-database.ts'
import { openOrSalvage } from '../../src/agent/platform/sqlite/salvage-journal.ts'
import { unverifiedText } from '../../src/protocol/signing.ts'
import { DeviceAudit } from '../audit/device.ts'
import { hold } from '../audit/ledger.ts'
import type { SentMessage } from './messages.ts'

/** Something the disk must contain, from the moment it could have left the device. */
export type DeviceDebt = { readonly at: number } & (
  | { readonly kind: 'answer'; readonly correlationId: string }
  | { readonly kind: 'segment'; readonly document: string }
  | { readonly kind: 'key'; readonly x: string }
)

const LIMITS = {
  pagesMax: 100_000,
  diskReservePages: 256,
  retentionMs: 7 * 86_400_000,
  retainedBytesMax: 1e9,
  answersMax: 10_000,
  recentEntries: 1_000,
  segmentEntriesMax: 1_000,
  pastRulesBytesMax: 1e6,
}
const STAMP = { clock: { bootId: 'after', sinceBoot: 1, earliest: 1, latest: null }, grantAgedMs: 0 }

export function debtsOfRequests(messages: readonly SentMessage[]): readonly DeviceDebt[] {
  return messages.flatMap(({ start, body, at }): readonly DeviceDebt[] => {
    if (/^POST \S+\/sync /.test(start)) {
      const { segment } = JSON.parse(body) as { segment: string }
      return [{ kind: 'segment', at, document: segment }]
    }
    if (/^POST \S+\/enrollments /.test(start)) {
      const { publicKey } = JSON.parse(body) as { publicKey: { x: string } }
      return [{ kind: 'key', at, x: publicKey.x }]
    }
    return []
  })
}

/** @throws AuditError, or an error of the agent's own code */
export async function auditDeviceImage(directory: string, debts: readonly DeviceDebt[]): Promise<void> {
  const file = join(directory, 'journal.db')
  const keyFile = join(directory, 'device.key')
  const shown = debts.find((debt) => debt.kind === 'key')
  if (shown !== undefined) {
    hold(existsSync(keyFile), 'the key that the device has shown is gone')
    const key = createPublicKey(readFileSync(keyFile, 'utf8')).export({ format: 'jwk' })
    hold(key.x === shown.x, 'the device has another key than the one that it has shown')
  }

  // As the agent opens it: a power cut must never cause damage.
  const store = openOrSalvage({ path: file, limits: LIMITS, later: [keyFile, `${file}-disk-reserve`], left: null }, 0)
  const { identity, salvages = [] } = store.read()
  store.close()
  hold(salvages.length === 0, `the ledger is taken for a damaged one: ${salvages[0]?.why}`)
  const { signer } = await openKeyFile({ path: keyFile, create: true })
  hold(identity === null || identity.keyId === signer.keyId, 'the device is enrolled with a key that it does not have')

  const audit = new DeviceAudit()
  audit.read(file)
  for (const debt of debts) {
    if (debt.kind === 'answer') {
      const { correlationId } = debt
      hold(audit.ledger.find(correlationId) !== undefined, `${correlationId} was answered and is not in the ledger`)
    } else if (debt.kind === 'segment') {
      const sealed = JSON.parse(unverifiedText(debt.document) ?? '') as { seq: number }
      hold(audit.hasSealed(sealed.seq, debt.document), `segment ${sealed.seq} was on its way and is not in the journal`)
    }
  }

  // Writing must still work.
  const again = new JournalStore(openDatabase(file), LIMITS)
  again.saveClock(STAMP)
  again.close()
}

export function prepareImage(directory: string): void {
  mkdirSync(directory, { recursive: true, mode: 0o700 })
}
