import { accessSync, constants, statSync } from 'node:fs'
import { delimiter, join } from 'node:path'

/** The first of these programs on the path, in the folders of a system's servers, or in `others`. */
export function onPath(names: readonly string[], others: readonly string[] = []): string | undefined {
  const folders = [...(process.env['PATH'] ?? '').split(delimiter), '/usr/sbin', '/usr/local/sbin', ...others]
  return names.flatMap((name) => folders.map((folder) => join(folder, name))).find(isExecutable)
}

function isExecutable(path: string): boolean {
  try {
    accessSync(path, constants.X_OK)
    return statSync(path).isFile()
  } catch {
    return false
  }
}
