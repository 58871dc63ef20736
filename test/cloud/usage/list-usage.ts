import type { UsageRecord } from '../../../src/cloud/storage/records.ts'
import type { Reader } from '../../../src/cloud/storage/store.ts'

/** Newest first. */
export async function listUsage(
  reader: Pick<Reader, 'usage'>,
  { instanceId = null, limit }: { readonly instanceId?: string | null; readonly limit: number },
): Promise<{ readonly records: readonly UsageRecord[] }> {
  const everything = { after: 0n, upTo: 2n ** 62n, from: null, to: null, limit: 1_000_000 }
  const found = await reader.usage.range({ ...everything, instanceId })
  return {
    records: found
      .map(({ record }) => record)
      .toReversed()
      .slice(0, limit),
  }
}
