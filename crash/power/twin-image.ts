/**
 * Checks a cloud's directory after a power cut: the cloud's code opens it, the audit passes, and everything the cloud
 * sent before the cut is there.
 */
import { existsSync, readFileSync } from 'node:fs'
import { join } from 'node:path'
import { z } from 'zod'
import { openSqliteStore } from '../../src/cloud/storage/sqlite/store.ts'
import { AuditError, hold, type Ledger } from '../audit/ledger.ts'
import { TwinAudit } from '../audit/twin.ts'
import type { SentMessage } from './messages.ts'

/** Something the disk must contain, from the moment it could have left the cloud. */
export type TwinDebt = { readonly at: number } & (
  | {
      readonly kind: 'merged'
      readonly deviceId: string
      readonly epoch: number
      readonly seq: number
      readonly hash: string
    }
  | { readonly kind: 'attached'; readonly deviceId: string; readonly epoch: number }
  | { readonly kind: 'enrolled'; readonly deviceId: string }
  | { readonly kind: 'decided'; readonly correlationId: string }
)

const merged = z.object({
  outcome: z.literal('MERGED'),
  deviceId: z.string(),
  epoch: z.int(),
  seq: z.int(),
  hash: z.string(),
})
const attached = z.object({ nonce: z.string(), deviceId: z.string(), epoch: z.int() })
const signed = z.object({ answer: z.string(), time: z.string() })
const enrolled = z.object({ deviceId: z.string(), trustedKeys: z.array(z.unknown()) })
const decided = z.object({ correlationId: z.string(), requestedItems: z.array(z.unknown()) })

export function debtsOfAnswers(messages: readonly SentMessage[]): readonly TwinDebt[] {
  return messages.flatMap(({ start, body, at }): readonly TwinDebt[] => {
    if (!/^HTTP\/1.1 2\d\d/.test(start) || !body.startsWith('{')) return []
    const said: unknown = JSON.parse(body)
    const answer = signed.safeParse(said).data?.answer
    const payload: unknown =
      answer === undefined
        ? undefined
        : JSON.parse(Buffer.from(answer.split('.')[1] ?? '', 'base64url').toString('utf8'))
    const sync = merged.safeParse(payload).data
    if (sync !== undefined) return [{ kind: 'merged', at, ...sync }]
    const attach = attached.safeParse(payload).data
    if (attach !== undefined) return [{ kind: 'attached', at, deviceId: attach.deviceId, epoch: attach.epoch }]
    const device = enrolled.safeParse(said).data
    if (device !== undefined) return [{ kind: 'enrolled', at, deviceId: device.deviceId }]
    const access = decided.safeParse(said).data
    if (access !== undefined) return [{ kind: 'decided', at, correlationId: access.correlationId }]
    return []
  })
}

export type Keys = Readonly<Record<'signing-key.pem' | 'administration-key.pem', string>>

/**
 * @param ledger of the device, at its end
 * @throws AuditError, or an error of the cloud's own code
 */
export async function auditTwinImage(
  directory: string,
  debts: readonly TwinDebt[],
  ledger: Ledger,
  keys: Keys,
): Promise<void> {
  const file = join(directory, 'twin.db')
  const broken: unknown[] = []
  const store = openSqliteStore({ path: file, check: true, onBroken: (error) => broken.push(error) })
  try {
    await store.read(async (reader) => {
      for (const debt of debts) {
        if (debt.kind === 'merged') {
          const segment = await reader.edge.segments.get(debt.deviceId, debt.epoch, debt.seq)
          hold(segment?.hash === debt.hash, `segment ${debt.seq} was acknowledged and is not merged`)
        } else if (debt.kind === 'attached') {
          const epoch = await reader.edge.epochs.get(debt.deviceId, debt.epoch)
          hold(epoch !== undefined, `epoch ${debt.epoch} was given out and is not there`)
        } else if (debt.kind === 'enrolled') {
          hold((await reader.edge.devices.get(debt.deviceId)) !== undefined, 'a device was enrolled and is not there')
        }
      }
      // The administrator has the private key for it, and devices pin the other key.
      const hasAdministrator = (await reader.keys.countAdministration()) > 0
      if (hasAdministrator) holdKey(directory, 'administration-key.pem', keys)
      if (debts.some(({ kind }) => kind !== 'decided')) holdKey(directory, 'signing-key.pem', keys)
    })
  } finally {
    await store.close()
  }
  if (broken.length > 0) throw new AuditError('the twin holds its file to be broken', { cause: broken[0] })
  const audit = new TwinAudit(ledger)
  audit.read(file)
  for (const debt of debts) {
    if (debt.kind !== 'decided') continue
    hold(audit.direct.has(debt.correlationId), `${debt.correlationId} was answered and is not in the usage`)
  }
}

function holdKey(directory: string, name: keyof Keys, keys: Keys): void {
  const file = join(directory, name)
  hold(existsSync(file), `${name} is gone`)
  hold(readFileSync(file, 'utf8') === keys[name], `${name} is another one than was used`)
}
