/** Reads the contents of a sealed segment from its own bytes, so that they are the same after a restart. */
import { z } from 'zod'
import { unverifiedText } from '../../protocol/signing.ts'
import type { SealedSegment } from '../ledger/journal.ts'

const payload = z.object({
  entries: z.object({ first: z.int(), bodies: z.array(z.string()) }),
  undeliveredRange: z.object({ entries: z.object({ bodies: z.array(z.string()) }) }).nullable(),
  needs: z.array(z.unknown()),
})

export interface SegmentExtent {
  readonly firstEntry: number
  /** `firstEntry - 1` when it contains no entries. */
  readonly lastEntry: number
  readonly undeliveredRange: number
  readonly needs: number
}

/** Throws for a document that is not a segment: only the journal makes them. */
export function extentOf({ document }: Pick<SealedSegment, 'document'>): SegmentExtent {
  const text = unverifiedText(document) ?? ''
  const { entries, undeliveredRange, needs } = payload.parse(JSON.parse(text))
  return {
    firstEntry: entries.first,
    lastEntry: entries.first + entries.bodies.length - 1,
    undeliveredRange: undeliveredRange?.entries.bodies.length ?? 0,
    needs: needs.length,
  }
}
