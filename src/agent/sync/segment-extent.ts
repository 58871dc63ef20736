/** What a sealed segment holds, read back from its own bytes: the same before and after a restart. */
import { z } from 'zod'
import { unverifiedText } from '../../protocol/signing.ts'
import type { SealedSegment } from '../ledger/journal.ts'

const payload = z.object({
  entries: z.object({ first: z.int(), bodies: z.array(z.string()) }),
  undeliveredRange: z.object({ entries: z.object({ bodies: z.array(z.string()) }) }).nullable(),
  backlog: z.int(),
  needs: z.array(z.unknown()),
})

export interface SegmentExtent {
  readonly firstEntry: number
  /** `firstEntry - 1` when it holds none. */
  readonly lastEntry: number
  /** Entries of the undelivered range of an earlier epoch in it. */
  readonly undeliveredRange: number
  /** Entries behind the last one that it had no place for. */
  readonly backlog: number
  /** How many waiting requests it asks for. */
  readonly needs: number
}

/** Throws for a document that is no segment: the journal has made it. */
export function extentOf({ document }: Pick<SealedSegment, 'document'>): SegmentExtent {
  const { entries, undeliveredRange, backlog, needs } = payload.parse(payloadOf(document))
  return {
    firstEntry: entries.first,
    lastEntry: entries.first + entries.bodies.length - 1,
    undeliveredRange: undeliveredRange?.entries.bodies.length ?? 0,
    backlog,
    needs: needs.length,
  }
}

function payloadOf(document: string): unknown {
  return JSON.parse(unverifiedText(document) ?? '')
}
