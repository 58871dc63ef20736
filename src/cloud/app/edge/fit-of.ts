/** Reads what it takes to say how a range of entries fits the merged chain of its incarnation. */
import { type ChainFit, type EntryRange, fitChain, lastOf } from '../../../core/receive.ts'
import { CHAIN_START } from '../../../protocol/signing.ts'
import type { Reader } from '../store.ts'
import type { Incarnation } from './records.ts'

export async function fitOf(reader: Reader, incarnation: Incarnation, range: EntryRange): Promise<ChainFit> {
  const { deviceId, number, lastEntry } = incarnation
  const last = lastOf(range)
  if (last >= lastEntry) return fitChain(incarnation, range, undefined)
  const recorded = last === 0 ? CHAIN_START : await reader.edge.entries.hashInChain(deviceId, number, last)
  return fitChain(incarnation, range, recorded)
}
