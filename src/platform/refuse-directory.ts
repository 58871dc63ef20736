import { statSync } from 'node:fs'

/** Renaming a file over a directory fails late, and with `EBUSY` over the root. @throws an error of the system */
export function refuseDirectory(path: string): void {
  const isDirectory = statSync(path, { throwIfNoEntry: false })?.isDirectory() === true
  if (isDirectory) throw Object.assign(new Error(`${path} is a directory`), { code: 'EISDIR' })
}
