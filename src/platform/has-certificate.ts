import { X509Certificate } from 'node:crypto'

/** Node ignores an authority that is no certificate: connections would fail later, for another reason. */
export function hasCertificate(pem: string): boolean {
  try {
    return new X509Certificate(pem).raw.length > 0
  } catch {
    return false
  }
}
