import { type ChainFit, type EntryRange, fitChain, lastOf } from '../../../core/sync/receive.ts'
import { CHAIN_START } from '../../../protocol/signing.ts'
import type { Reader } from '../../storage/store.ts'
import type { Epoch } from '../../storage/device-records.ts'

export async function fitOf(reader: Reader, epoch: Epoch, range: EntryRange): Promise<ChainFit> {
  const { deviceId, number, lastEntry } = epoch
  const last = lastOf(range)
  if (last >= lastEntry) return fitChain(epoch, range, undefined)
  const recorded = last === 0 ? CHAIN_START : await reader.edge.entries.hashInChain(deviceId, number, last)
  // Of an archived entry, the store has only the beginning of the hash.
  const claimed = range.entryHashes.at(-1) ?? range.entriesPreviousHash
  return fitChain(epoch, range, recorded !== undefined && claimed.startsWith(recorded) ? claimed : recorded)
}
