import { readFileSync } from 'node:fs'
import { z } from 'zod'
import { REQUESTERS } from './site.ts'

const recordedRequest = z.strictObject({
  at: z.string(),
  requester: z.string().refine((name) => Object.hasOwn(REQUESTERS, name), 'must be a requester of the site'),
  items: z.array(
    z.strictObject({
      item: z.string(),
      version: z.string(),
      count: z.number(),
      /** The refusal that this item must get regardless of balances; omitted where balances decide. */
      must: z.enum(['ITEM_NOT_RATED', 'NO_USABLE_LINE_ITEM', 'DENIED_BY_RULE']).optional(),
    }),
  ),
})

export type RecordedRequest = z.infer<typeof recordedRequest>

export const DAY_FILE = new URL('./day.ndjson', import.meta.url)

export function readDay(file: URL = DAY_FILE): readonly RecordedRequest[] {
  const lines = readFileSync(file, 'utf8').trimEnd().split('\n')
  return lines.map((line) => recordedRequest.parse(JSON.parse(line)))
}
