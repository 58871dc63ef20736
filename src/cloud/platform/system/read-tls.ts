import { createSecureContext } from 'node:tls'
import { CodedError } from '../../../protocol/errors.ts'
import type { Certificate } from '../../check-settings.ts'
import type { CloudSettings } from '../../settings.ts'
import { readSettingFile } from '../../../platform/read-setting-file.ts'

/** Null: plain HTTP. @throws CodedError CONFIG_INVALID, CONFIG_UNREADABLE */
export function readTls({ certificateFile, keyFile }: CloudSettings['tls']): Certificate | null {
  if (certificateFile === null && keyFile === null) return null
  if (certificateFile === null || keyFile === null) {
    throw new CodedError('CONFIG_INVALID', 'tls.certificate_file and tls.key_file go together: one of them is missing.')
  }
  const tls = {
    certificate: readSettingFile('tls.certificate_file', certificateFile),
    key: readSettingFile('tls.key_file', keyFile),
  }
  try {
    createSecureContext({ cert: tls.certificate, key: tls.key })
  } catch (cause) {
    throw new CodedError('CONFIG_INVALID', `${certificateFile} and ${keyFile} do not go together, or are no PEM.`, {
      cause,
    })
  }
  return tls
}
