/** Lists over all cells. If a cell cannot answer, the list fails: no part is left out. */
import { PAGE_SIZE_DEFAULT } from '../../protocol/service/instances.ts'
import { CELLS_MAX } from '../cells/cell-settings.ts'
import type { MergeCells } from './operation.ts'

/** Positions in the second cell begin with it, in the third with its double. A position has nine digits. */
const POSITIONS_OF_CELL = 1_000_000_000 / CELLS_MAX

interface PageQuery {
  readonly next?: number
  readonly size?: number
}

/** Pages `{ [list]: [...], next }`: the rows of the first cell, then of the second, and so on. */
export function pagesOf(list: string): MergeCells {
  return async (ask, query) => {
    const { next = 0, size = PAGE_SIZE_DEFAULT } = query as PageQuery
    const wanted = Math.max(1, size)
    const rows: unknown[] = []
    let position = next
    for (;;) {
      const cell = Math.floor(position / POSITIONS_OF_CELL)
      const from = { ...(query as PageQuery), next: position % POSITIONS_OF_CELL, size: wanted - rows.length }
      const page = (await ask[cell]?.(from))?.body as (PageQuery & Record<string, readonly unknown[]>) | undefined
      rows.push(...(page?.[list] ?? []))
      if (page?.next !== undefined && page.next !== 0) position = cell * POSITIONS_OF_CELL + page.next
      else position = cell + 1 < ask.length ? (cell + 1) * POSITIONS_OF_CELL : 0
      if (position === 0 || rows.length >= wanted) return { status: 200, body: { [list]: rows, next: position } }
    }
  }
}

/** A list of limited length: rows of the cells in turns, so that a full cell does not hide the others. */
export function inTurns(max: number): MergeCells {
  return async (ask, query) => {
    const lists = await Promise.all(ask.map(async (one) => (await one(query)).body as readonly unknown[]))
    const longest = Math.max(...lists.map(({ length }) => length))
    const rows = Array.from({ length: longest }, (_, at) => lists.flatMap((list) => list.slice(at, at + 1))).flat()
    return { status: 200, body: rows.slice(0, max) }
  }
}
