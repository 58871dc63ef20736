import { readFileSync } from 'node:fs'
import { CodedError } from '../../../protocol/errors.ts'
import { unreadableReason } from '../../../protocol/file-reasons.ts'

/** @throws CodedError CONFIG_UNREADABLE */
export function readText(path: string): string {
  try {
    return readFileSync(path, 'utf8')
  } catch (cause) {
    throw new CodedError('CONFIG_UNREADABLE', `${path}: ${unreadableReason(cause)}.`, { cause })
  }
}
