/**
 * The signing key is one of the store's, whichever node signs: devices pin it, and refuse what another key has signed. A
 * node that comes with another key must not start, because half of all devices' requests would meet a stranger.
 */
import { CodedError } from '../../protocol/errors.ts'
import type { Store } from '../storage/store.ts'

export interface SigningKeyFile {
  /** Where the node looks for its key. */
  readonly path: string
  /** Whether there is a key in it. */
  exists(): boolean
  /**
   * Reads the key, and makes one where there is none: the thumbprint (RFC 7638) of its public half, and those of the keys that
   * it succeeds in good order.
   */
  open(): Promise<{ readonly keyId: string; readonly succeeded: readonly string[] }>
}

/**
 * Registers the key of the first node of a store, or one that succeeds it, and refuses every other one.
 *
 * @param replacement thumbprint of a key that takes the place of the registered one; null: none may
 * @throws CodedError SIGNING_KEY_DIFFERS, and what the file throws
 */
export async function claimSigningKey(
  store: Store,
  file: SigningKeyFile,
  replacement: string | null,
  now: number,
): Promise<void> {
  const known = await store.read((reader) => reader.edge.signingKey.get())
  // Nothing is made that would have to be removed before the right key can take its place.
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
    // Signed by the key of before.
    await tx.edge.policyDocuments.removeAll()
  })
}
