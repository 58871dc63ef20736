import { createSecureContext } from 'node:tls'
import { CodedError } from '../protocol/errors.ts'
import { readSettingFile } from './read-setting-file.ts'

/** PEM. */
export interface Certificate {
  readonly certificate: string
  readonly key: string
}

/**
 * Null: no TLS.
 * @param group of the settings that name the files
 * @throws CodedError CONFIG_INVALID, CONFIG_UNREADABLE
 */
export function readCertificate(
  group: 'tls' | 'status',
  { certificateFile, keyFile }: { readonly certificateFile: string | null; readonly keyFile: string | null },
): Certificate | null {
  const [certificateName, keyName] = [`${group}.certificate_file`, `${group}.key_file`]
  if (certificateFile === null && keyFile === null) return null
  if (certificateFile === null || keyFile === null) {
    throw new CodedError('CONFIG_INVALID', `${certificateName} and ${keyName} go together: one of them is missing.`)
  }
  const certificate = readSettingFile(certificateName, certificateFile)
  const key = readSettingFile(keyName, keyFile)
  try {
    createSecureContext({ cert: certificate, key })
  } catch (cause) {
    const message = `${certificateFile} and ${keyFile} do not go together, or are no PEM.`
    throw new CodedError('CONFIG_INVALID', message, { cause })
  }
  return { certificate, key }
}
