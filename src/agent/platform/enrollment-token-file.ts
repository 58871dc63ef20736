import { statSync } from 'node:fs'
import { readSmallText } from '../../platform/read-file.ts'
import { unreadableReason } from '../../protocol/file-reasons.ts'

/** A sentence that explains why the file gives no token; null: it does not exist, or has content. */
export function tokenFileProblem(path: string): string | null {
  try {
    return readSmallText(path).trim() === '' ? `${path} is empty.` : null
  } catch (error) {
    const { code } = error as NodeJS.ErrnoException
    if (code === 'ENOENT' || code === 'ENOTDIR') return null
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
