import { describe, expect, it } from 'vitest'
import { inTurns, pagesOf } from '../../../src/cloud/http/merge-cells.ts'
import type { Answer } from '../../../src/cloud/http/operation.ts'

/** A cell that lists its rows in pages. */
function pages(...rows: number[]) {
  return async (query: unknown): Promise<Answer> => {
    const { next = 0, size = 100 } = query as { next?: number; size?: number }
    const more = rows.length > next + size
    return { status: 200, body: { rows: rows.slice(next, next + size), next: more ? next + size : 0 } }
  }
}

async function readAll(size: number, ...cells: ((query: unknown) => Promise<Answer>)[]) {
  const found: number[][] = []
  let next = 0
  do {
    const { body } = await pagesOf('rows')(cells, { next, size })
    const page = body as { rows: number[]; next: number }
    found.push(page.rows)
    ;({ next } = page)
    expect(next).toBeLessThan(1_000_000_000)
  } while (next !== 0)
  return found
}

describe('pages over cells', () => {
  it.each([
    [2, [[1, 2], [3, 4], [5, 6], [7]]],
    [3, [[1, 2, 3], [4, 5, 6], [7]]],
    [7, [[1, 2, 3, 4, 5, 6, 7]]],
    [100, [[1, 2, 3, 4, 5, 6, 7]]],
  ])('have %d rows each, of one cell after the other', async (size, expected) => {
    expect(await readAll(size, pages(1, 2, 3), pages(), pages(4, 5), pages(6, 7))).toEqual(expected)
  })

  it('have no page after the last one if the last cells are empty', async () => {
    expect(await readAll(2, pages(1, 2), pages(), pages())).toEqual([[1, 2], []])
    expect(await readAll(5, pages(), pages())).toEqual([[]])
  })

  it('fail if a cell fails', async () => {
    await expect(readAll(5, pages(1), () => Promise.reject(new Error('away')))).rejects.toThrow('away')
  })
})

describe('a list of limited length over cells', () => {
  it('takes rows of the cells in turns', async () => {
    const list =
      (...body: number[]) =>
      (): Promise<Answer> =>
        Promise.resolve({ status: 200, body })
    const { body } = await inTurns(5)([list(1, 2, 3, 4), list(), list(5, 6)], {})
    expect(body).toEqual([1, 5, 2, 6, 3])
  })
})
