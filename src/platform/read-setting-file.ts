import { CodedError } from '../../../protocol/errors.ts'
import { systemFailure, unreadableReason } from '../../../protocol/file-reasons.ts'
import { readSmallText } from '../../../platform/read-file.ts'

/** @throws CodedError CONFIG_UNREADABLE */
export function readText(path: string): string {
  try {
    return readSmallText(path)
  } catch (cause) {
    const message = `${path}: ${unreadableReason(cause)}.`
    throw systemFailure(cause, path) ?? new CodedError('CONFIG_UNREADABLE', message, { cause })
  }
}
