import { CodedError } from '../protocol/errors.ts'
import { systemFailure, unreadableSetting } from '../protocol/file-reasons.ts'
import { hasCertificate } from './has-certificate.ts'
import { readSmallText } from './read-file.ts'

/** @throws CodedError CONFIG_UNREADABLE, or of {@link systemFailure} */
export function readSettingFile(setting: string, path: string): string {
  try {
    return readSmallText(path)
  } catch (cause) {
    throw systemFailure(cause, path) ?? unreadableSetting(cause, path, `${setting}: ${path}`)
  }
}

/** @throws CodedError CONFIG_INVALID, and those of {@link readSettingFile} */
export function readAuthorityFile(setting: string, path: string): string {
  const pem = readSettingFile(setting, path)
  if (!hasCertificate(pem)) throw new CodedError('CONFIG_INVALID', `${setting}: ${path} has no PEM certificate.`)
  return pem
}
