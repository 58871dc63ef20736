import { statSync } from 'node:fs'
import { readSmallText } from '../../platform/read-file.ts'
import { unreadableReason } from '../../protocol/file-reasons.ts'

/** A sentence that explains why the file gave no token to the settings. */
export function tokenFileProblem(path: string): string {
  try {
    return readSmallText(path).trim() === ''
      ? `There is no enrollment token: ${path} is empty.`
      : `The agent has not read ${path} yet: reload or restart it.`
  } catch (error) {
    const { code } = error as NodeJS.ErrnoException
    if (code === 'ENOENT' || code === 'ENOTDIR') return `There is no enrollment token: ${path} does not exist.`
    const uid = process.getuid?.() ?? 0
    return code === 'EACCES'
      ? `The user of the agent may not read ${path}: run chown ${uid} ${path} as root, then restart the agent.`
      : `${path} cannot be read: ${unreadableReason(error)}.`
  }
}

/** A warning if users outside of the file's group have access to the token; null: none. */
export function openTokenFile(path: string): string | null {
  const mode = statSync(path, { throwIfNoEntry: false })?.mode ?? 0
  if ((mode & 0o007) === 0) return null
  return `every user has access to the enrollment token in ${path} (mode 0${(mode & 0o777).toString(8)}), and could enroll another machine with it: run chmod o-rwx ${path} as its owner or root`
}
