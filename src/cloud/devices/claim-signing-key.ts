/** All nodes of a store sign with one key, which devices pin. A node with another key must not start. */
import { CodedError } from '../../protocol/errors.ts'
import type { Store } from '../storage/store.ts'

export interface SigningKeyFile {
  readonly path: string
  exists(): boolean
  /** Reads or creates the key. Returns its RFC 7638 thumbprint, and those of the keys that it properly succeeds. */
  open(): Promise<{ readonly keyId: string; readonly succeeded: readonly string[] }>
}

/** @param replacement thumbprint that may replace the registered one. @throws CodedError SIGNING_KEY_DIFFERS */
export async function claimSigningKey(
  store: Store,
  file: SigningKeyFile,
  replacement: string | null,
  now: number,
): Promise<void> {
  const known = await store.read((reader) => reader.edge.signingKey.get())
  // Do not create a key here: it would have to be removed before the right one can be installed.
  if (known !== undefined && !file.exists()) {
    throw new CodedError('SIGNING_KEY_DIFFERS', `There is no key in ${file.path}; the store knows ${known}.`)
  }
  const { keyId: own, succeeded } = await file.open()
  await store.transaction(async (tx) => {
    await tx.keys.lock()
    const registered = await tx.edge.signingKey.get()
    if (registered === own) return
    if (registered !== undefined && own !== replacement && !succeeded.includes(registered)) {
      throw new CodedError('SIGNING_KEY_DIFFERS', `The key in ${file.path} is ${own}; the store knows ${registered}.`)
    }
    await tx.edge.signingKey.register(own, now)
    // Signed by the previous key.
    await tx.edge.policyDocuments.removeAll()
  })
}
