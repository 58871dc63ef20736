import { X509Certificate } from 'node:crypto'
import { isIP } from 'node:net'

/** Rest of its life, ms, at which a certificate that should have been renewed is reported. */
const RENEWAL_MS_MAX = 14 * 86_400_000

/** The same as a part of its whole life: some certificates live for days only. */
const RENEWAL_PART = 1 / 5

/** POSIX ms. @param pem the certificate first, then its chain */
export function certificateExpiry(pem: string): number {
  return Date.parse(new X509Certificate(pem).validTo)
}

/**
 * Why clients refuse a certificate, or soon will; null: they accept its dates and names.
 *
 * @param pem the certificate first, then its chain
 */
export function certificateProblem(pem: string, hosts: readonly string[], now: number): string | null {
  const certificate = new X509Certificate(pem)
  const [from, to] = [Date.parse(certificate.validFrom), Date.parse(certificate.validTo)]
  if (now >= to) return `expired at ${new Date(to).toISOString()}`
  if (now < from) return `is not valid before ${new Date(from).toISOString()}`
  const other = hosts.find(
    (host) => (isIP(host) === 0 ? certificate.checkHost(host) : certificate.checkIP(host)) === undefined,
  )
  if (other !== undefined) return `is not for ${other}, but for ${certificate.subjectAltName ?? certificate.subject}`
  return to - now < Math.min(RENEWAL_MS_MAX, (to - from) * RENEWAL_PART)
    ? `expires at ${new Date(to).toISOString()}`
    : null
}
