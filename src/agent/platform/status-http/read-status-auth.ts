/** Reads the access settings of the status server and their files anew on each call. */
import { createSecureContext } from 'node:tls'
import { readSettingFile } from '../../../platform/read-setting-file.ts'
import { CodedError } from '../../../protocol/errors.ts'
import type { Secret } from '../../../settings/option.ts'
import { type StatusAuthOptions, certificateUnusable, requireSafe } from './status-auth.ts'

export interface StatusAuthFiles {
  readonly host: string
  readonly token: Secret | null
  readonly certificateFile: string | null
  readonly keyFile: string | null
  readonly clientCaFile: string | null
}

/** @throws CodedError CONFIG_INVALID for unsafe or inconsistent settings, CONFIG_UNREADABLE */
export function readStatusAuth({
  host,
  token,
  certificateFile,
  keyFile,
  clientCaFile,
}: StatusAuthFiles): StatusAuthOptions {
  const auth = { host, tls: readTls(certificateFile, keyFile, clientCaFile), token: token?.reveal() ?? null }
  requireSafe(auth)
  return auth
}

function readTls(
  certificateFile: string | null,
  keyFile: string | null,
  clientCaFile: string | null,
): StatusAuthOptions['tls'] {
  if (certificateFile === null && keyFile === null) {
    if (clientCaFile === null) return null
    throw new CodedError('CONFIG_INVALID', 'status.client_ca_file needs status.certificate_file and status.key_file.')
  }
  if (certificateFile === null || keyFile === null) {
    throw new CodedError('CONFIG_INVALID', 'Set both status.certificate_file and status.key_file, or neither.')
  }
  const tls = {
    certificate: readSettingFile('status.certificate_file', certificateFile),
    key: readSettingFile('status.key_file', keyFile),
    clientCa: clientCaFile === null ? null : readSettingFile('status.client_ca_file', clientCaFile),
  }
  try {
    createSecureContext({ cert: tls.certificate, key: tls.key, ...(tls.clientCa === null ? {} : { ca: tls.clientCa }) })
  } catch (cause) {
    throw certificateUnusable(cause)
  }
  return tls
}
