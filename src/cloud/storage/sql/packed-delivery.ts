/**
 * The body of a delivery: a header line, and the exact texts of its entries, compressed together. Hashes of a chain are
 * computed again.
 */
import { entryHash } from '../../../protocol/signing.ts'
import { compress, decompress } from '../../../protocol/zstd.ts'
import { entryBody } from '../../../protocol/edge/sync.ts'
import { EntryReader } from '../../../protocol/edge/read-entry.ts'
import { type BilledEntry, usageOfEntries } from '../../usage/usage-of-entries.ts'
import type { Delivery, LedgerEntry } from '../device-records.ts'
import type { UsageRecord } from '../records.ts'
import type { Row } from './tables.ts'
import { unlessDamaged } from './unless-damaged.ts'

/** JSON texts cannot contain it. */
const SEPARATOR = '\u001E'

interface Header {
  /** Of a chain. */
  readonly previousHash?: string
  /** Of a branch: number and hash of each entry. */
  readonly branch?: readonly (readonly [n: number, hash: string])[]
  readonly billedBefore: readonly number[]
  readonly writeTime: number
  readonly accountIds: readonly (readonly [instanceId: string, accountId: string])[]
  readonly quantities: readonly (readonly [lineItem: string, quantity: string])[]
  readonly used: readonly (readonly [account: string, tokens: string])[]
}

/** Columns that only a delivery has. */
export interface DeliveryColumns {
  readonly device_id: string
  readonly epoch: bigint
  readonly segment: bigint
  readonly branch: bigint
  readonly first_entry: bigint
  readonly last_entry: bigint
}

export type DeliveryRow = Row<'usage'> & DeliveryColumns

type PackedDelivery = Pick<DeliveryRow, 'device_id' | 'epoch' | 'first_entry' | 'body'>

export function packDelivery({ branch, previousHash, entries, billedBefore, inputs }: Delivery): Buffer {
  const header: Header = {
    ...(branch ? { branch: entries.map(({ n, hash }) => [n, hash]) } : { previousHash }),
    billedBefore,
    writeTime: inputs.writeTime,
    accountIds: [...inputs.accountIds],
    quantities: [...inputs.quantities].map(([lineItem, quantity]) => [lineItem, String(quantity)]),
    used: [...inputs.used].map(([account, tokens]) => [account, String(tokens)]),
  }
  const text = [JSON.stringify(header), ...entries.map((entry) => entry.text)].join(SEPARATOR)
  return compress(text)
}

function unpack({ body }: PackedDelivery): { readonly header: Header; readonly texts: readonly string[] } {
  return unlessDamaged('usage', () => {
    const [header = '', ...texts] = decompress(body).toString('utf8').split(SEPARATOR)
    return { header: JSON.parse(header) as Header, texts }
  })
}

export function entriesOf(delivery: PackedDelivery): readonly LedgerEntry[] {
  const { header, texts } = unpack(delivery)
  const { branch } = header
  if (branch !== undefined) return branch.map(([n, hash], index) => ({ n, hash, text: texts[index] ?? '' }))
  let hash = header.previousHash ?? ''
  return texts.map((text, index) => {
    hash = entryHash(hash, text)
    return { n: Number(delivery.first_entry) + index, hash, text }
  })
}

/** In the order of their positions. */
export function usageOfDelivery(delivery: PackedDelivery): readonly UsageRecord[] {
  const { header, texts } = unpack(delivery)
  const { branch, billedBefore, writeTime, accountIds, quantities, used } = header
  const before = new Set(billedBefore)
  const reader = new EntryReader()
  const entries = texts
    .map((text, index): BilledEntry => ({
      n: branch?.[index]?.[0] ?? Number(delivery.first_entry) + index,
      body: reader.read(text) ?? entryBody.parse(JSON.parse(text)),
    }))
    .filter(({ n }) => !before.has(n))
  return usageOfEntries(entries, {
    deviceId: delivery.device_id,
    epoch: Number(delivery.epoch),
    writeTime,
    accountIds: new Map(accountIds),
    quantities: new Map(quantities.map(([lineItem, quantity]) => [lineItem, BigInt(quantity)])),
    used: new Map(used.map(([account, tokens]) => [account, BigInt(tokens)])),
  })
}
