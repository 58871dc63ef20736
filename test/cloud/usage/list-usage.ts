import type { NumberedUsage, UsageRange, UsageRecord } from '../../../src/cloud/storage/records.ts'
import type { Reader } from '../../../src/cloud/storage/store.ts'

/** All of the range, oldest first. @param range `limit`: of each step */
export async function usageIn(reader: Pick<Reader, 'usage'>, range: UsageRange): Promise<readonly NumberedUsage[]> {
  const found: NumberedUsage[] = []
  for (let { after } = range; after < range.upTo;) {
    const { records, end } = await reader.usage.range({ ...range, after })
    found.push(...records)
    after = end
  }
  return found
}

/** Newest first. */
export async function listUsage(
  reader: Pick<Reader, 'usage'>,
  { instanceId = null, limit }: { readonly instanceId?: string | null; readonly limit: number },
): Promise<{ readonly records: readonly UsageRecord[] }> {
  const everything = { after: 0n, upTo: 2n ** 62n, from: null, to: null, limit: 1_000_000 }
  const found = await usageIn(reader, { ...everything, instanceId })
  return {
    records: found
      .map(({ record }) => record)
      .toReversed()
      .slice(0, limit),
  }
}
