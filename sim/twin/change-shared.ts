import type { TwinProcess } from './twin-process.ts'

/** Changes what all cells have, in the control cell if there is one. @throws CodedError if it does not respond */
export function changeShared(
  { store, now, cells }: TwinProcess,
  work: (twin: Pick<TwinProcess, 'store' | 'now'>) => Promise<void>,
): Promise<void> {
  return cells === null ? work({ store, now }) : cells.change((control) => work({ store: control, now }))
}
