import { Directory, type Kind } from '../../src/cloud/cells/directory.ts'
import type { ServedCell } from '../../src/cloud/http/route-over-cells.ts'
import type { Defect } from './defects.ts'

/** Finds nothing while a cell does not respond. */
class DirectoryOfAll extends Directory<ServedCell> {
  readonly #cells: readonly ServedCell[]

  constructor(cells: readonly ServedCell[]) {
    super(cells)
    this.#cells = cells
  }

  override async find(kind: Kind, id: string): Promise<ServedCell | null> {
    for (const { store } of this.#cells) await store.read((reader) => reader.cell.get())
    return super.find(kind, id)
  }
}

export const CELL_DEFECTS: readonly Defect[] = [
  {
    name: 'copies-nothing',
    is: 'a cell does not get the rate tables that were set in the control cell later',
    always: ['control-cell-down', 'rates'],
    twin: () => {
      let rounds = 0
      return {
        copies: () => {
          rounds += 1
          // The first rate tables, without which no request is allowed.
          return rounds === 1
        },
      }
    },
  },
  {
    name: 'asks-all-cells',
    is: 'the cell of an id is searched in all cells, so that a cell fails with another one',
    always: ['control-cell-down'],
    without: ['twin-down', 'twin-death'],
    twin: () => ({ cells: (over) => ({ ...over, directory: new DirectoryOfAll(over.cells) }) }),
  },
]
