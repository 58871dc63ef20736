/** The cells of a node: started, composed and watched together. A cloud without cells has one. */
import { isUnreachable } from './cells/cell-store.ts'
import { Directory } from './cells/directory.ts'
import type { CellWatch } from './cells/watch-cells.ts'
import { type CellDeps, type ComposedCell, composeCell } from './compose-cell.ts'
import { Cell, type CellNode } from './open-cell.ts'
import { type RepeatedJobDeps, runRepeatedly } from './runtime/run-repeatedly.ts'

/** How often to look whether the database of a cell responds, ms. */
const PROBE_EVERY_MS = 1_000

/** How often to look whether a cell lacks changes of the control cell, ms. */
const COPY_EVERY_MS = 5_000

/** Without cells, the cloud is one. */
export function cellsOf(node: CellNode): readonly [Cell, ...Cell[]] {
  const [first = null, ...others] = node.settings.cells ?? []
  return [new Cell(node, first, true), ...others.map((place) => new Cell(node, place, false))]
}

/**
 * Starts the cells that have not started. One that responds is enough.
 * @throws CodedError of a cell that can never start, or DATABASE_UNREACHABLE if no cell responds
 */
export async function startCells(cells: readonly [Cell, ...Cell[]]): Promise<void> {
  const [control, ...others] = cells
  // At the first start, the control cell knows which keys there are.
  const results = await Promise.allSettled([control.start()])
  results.push(...(await Promise.allSettled(others.map((cell) => cell.start()))))
  const failed = results.flatMap((result) => (result.status === 'rejected' ? [result.reason as unknown] : []))
  const fatal = failed.filter((error) => !isUnreachable(error))
  if (fatal.length > 0 || failed.length === cells.length) throw [...fatal, ...failed][0]
}

/** @throws CodedError if no store responds and can be written */
export async function requireOneWorking(cells: readonly Cell[]): Promise<void> {
  const working = cells.map(async ({ store, clock }) => {
    clock.requireRecorded()
    await store.read((reader) => reader.keys.countAdministration())
  })
  await Promise.any(working).catch((error: unknown) => {
    throw error instanceof AggregateError ? error.errors[0] : error
  })
}

export interface ComposedCells {
  readonly cells: readonly [ComposedCell, ...ComposedCell[]]
  readonly directory: Directory<ComposedCell>
}

export async function composeCells(
  cells: readonly [Cell, ...Cell[]],
  deps: Omit<CellDeps, 'isElsewhere'>,
): Promise<ComposedCells> {
  const late: { directory?: Directory<ComposedCell> } = {}
  const isElsewhere = async (id: string): Promise<boolean> =>
    ((await late.directory?.find('instance', id)) ?? null) !== null
  const all = { ...deps, ...(deps.settings.cells === null ? {} : { isElsewhere }) }
  const [control, ...others] = cells
  const composed: ComposedCells['cells'] = [
    await composeCell(control, all),
    ...(await Promise.all(others.map((cell) => composeCell(cell, all)))),
  ]
  late.directory = new Directory(composed)
  return { cells: composed, directory: late.directory }
}

export function runCellWatch(
  watch: CellWatch,
  cells: readonly Cell[],
  deps: RepeatedJobDeps,
  started: AsyncDisposableStack,
): void {
  // One that does not respond must not delay the others.
  for (const cell of cells) {
    started.defer(runRepeatedly(deps, PROBE_EVERY_MS, () => watch.probe(cell), 'a cell was not probed'))
  }
  started.defer(runRepeatedly(deps, COPY_EVERY_MS, () => watch.copy(), 'the control cell was not copied'))
}
