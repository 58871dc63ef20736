/** Reads the access settings of the status server and their files anew on each call. */
import { readCertificate } from '../../../platform/read-certificate.ts'
import { readAuthorityFile } from '../../../platform/read-setting-file.ts'
import { CodedError } from '../../../protocol/errors.ts'
import type { Secret } from '../../../settings/option.ts'
import { type StatusAuthOptions, requireSafe } from './status-auth.ts'

export interface StatusAuthFiles {
  readonly host: string
  readonly token: Secret | null
  readonly certificateFile: string | null
  readonly keyFile: string | null
  readonly clientCaFile: string | null
}

/** @throws CodedError CONFIG_INVALID for unsafe or inconsistent settings, CONFIG_UNREADABLE */
export function readStatusAuth({ host, token, clientCaFile, ...files }: StatusAuthFiles): StatusAuthOptions {
  const certificate = readCertificate('status', files)
  if (certificate === null && clientCaFile !== null) {
    throw new CodedError('CONFIG_INVALID', 'status.client_ca_file needs status.certificate_file and status.key_file.')
  }
  const clientCa = clientCaFile === null ? null : readAuthorityFile('status.client_ca_file', clientCaFile)
  const tls = certificate === null ? null : { ...certificate, clientCa }
  const auth = { host, tls, token: token?.reveal() ?? null }
  requireSafe(auth)
  return auth
}
