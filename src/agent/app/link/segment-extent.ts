/** What a sealed segment holds, read back from its own bytes: the same before and after a restart. */
import { base64url } from 'jose'
import { z } from 'zod'
import type { SealedSegment } from '../journal.ts'

const payload = z.object({
  entries: z.object({ first: z.int(), bodies: z.array(z.string()) }),
  arrears: z.object({ entries: z.object({ bodies: z.array(z.string()) }) }).nullable(),
  backlog: z.int(),
})

export interface SegmentExtent {
  readonly firstEntry: number
  /** `firstEntry - 1` when it holds none. */
  readonly lastEntry: number
  /** Entries of an earlier incarnation in it. */
  readonly arrears: number
  /** Entries behind the last one that it had no place for. */
  readonly backlog: number
}

/** Throws for a document that is no segment: the journal has made it. */
export function extentOf({ document }: Pick<SealedSegment, 'document'>): SegmentExtent {
  const text = new TextDecoder().decode(base64url.decode(document.split('.')[1] ?? ''))
  const { entries, arrears, backlog } = payload.parse(JSON.parse(text))
  return {
    firstEntry: entries.first,
    lastEntry: entries.first + entries.bodies.length - 1,
    arrears: arrears?.entries.bodies.length ?? 0,
    backlog,
  }
}
