/** The cloud's signing key, and the introductions by which devices move to the next one. Each step is durable. */
import { createPublicKey } from 'node:crypto'
import { renameSync } from 'node:fs'
import { dirname, join } from 'node:path'
import { z } from 'zod'
import { INTRODUCTIONS_MAX } from '../../../protocol/edge/signing-keys.ts'
import { CodedError } from '../../../protocol/errors.ts'
import { unwritableState } from '../../../protocol/file-reasons.ts'
import { type PublicJwk, publicJwk, publicJwkOf, signDocument, thumbprint } from '../../../protocol/signing.ts'
import type { Keyring, TrustedKey } from '../../devices/keyring.ts'
import { absenceOf } from '../../../platform/denial-of.ts'
import { flush } from '../../../platform/flush.ts'
import { replaceFile } from '../../../platform/replace-file.ts'
import { openKeyFile, readIfThere } from './key-file.ts'

const chainFile = z.array(
  z.strictObject({
    previous: publicJwk,
    introduction: z.string(),
    /** Thumbprint of the introduced key. */
    introduces: z.string(),
    /** Devices are still instructed to trust the previous key. */
    trusted: z.boolean(),
  }),
)
type Chain = z.infer<typeof chainFile>

export function chainPath(keyPath: string): string {
  return join(dirname(keyPath), 'signing-keys.json')
}

/** `succeeded`: thumbprints of replaced keys. @throws CodedError KEY_UNUSABLE, STATE_UNWRITABLE */
export async function openKeyring(path: string): Promise<Keyring & { readonly succeeded: readonly string[] }> {
  const privateKey = openKeyFile(path)
  const own = await trustedKey(publicJwkOf(privateKey))
  const chain = readChain(path)
  const before: TrustedKey[] = []
  for (const { previous, trusted } of chain.toReversed()) {
    const key = await trustedKey(previous)
    if (trusted && key.keyId !== own.keyId && before.every(({ keyId }) => keyId !== key.keyId)) before.push(key)
  }
  return {
    signer: { keyId: own.keyId, privateKey },
    trusted: [own, ...before],
    introductions: chain.map(({ introduction }) => introduction),
    succeeded: await Promise.all(chain.map(({ previous }) => thumbprint(previous))),
  }
}

/** A running cloud uses the new key after a reload. @throws CodedError KEY_UNUSABLE, STATE_UNWRITABLE, CONFLICT */
export async function rotateSigningKey(
  path: string,
  now: number,
): Promise<{ readonly from: string; readonly to: string }> {
  refuseAbsent(path)
  const current = openKeyFile(path)
  const nextPath = `${path}.next`
  const next = publicJwkOf(openKeyFile(nextPath))
  const previous = publicJwkOf(current)
  const [from, to] = [await thumbprint(previous), await thumbprint(next)]
  const chain = readChain(path)
  if (chain.at(-1)?.introduces !== to) {
    if (chain.length >= INTRODUCTIONS_MAX)
      throw new CodedError(
        'CONFLICT',
        `${chainPath(path)} already contains ${chain.length} keys. Forget a previous key first.`,
      )
    const text = JSON.stringify({ introduces: next, at: now })
    const introduction = await signDocument('key', text, { keyId: from, privateKey: current })
    writeChain(path, [...chain, { previous, introduction, introduces: to, trusted: true }])
  }
  unlessWritable(path, () => {
    renameSync(nextPath, path)
    flush(dirname(path))
    flush(path)
  })
  return { from, to }
}

/** Opening it would make another key. */
function refuseAbsent(path: string): void {
  const absence = absenceOf(path)
  if (absence !== null) throw new CodedError('KEY_UNUSABLE', `The key file ${path} ${absence}.`)
}

/** @throws CodedError NOT_FOUND if the key is not trusted or is the current one; KEY_UNUSABLE, STATE_UNWRITABLE */
export async function forgetSigningKey(path: string, keyId: string): Promise<void> {
  refuseAbsent(path)
  const keyring = await openKeyring(path)
  const known = keyring.trusted.slice(1).map((key) => key.keyId)
  if (!known.includes(keyId)) {
    throw new CodedError(
      'NOT_FOUND',
      `${keyId} is not a trusted previous signing key. Trusted previous keys: ${known.join(', ') || 'none'}.`,
      { details: { remedy: known.length === 0 ? 'There is nothing to forget.' : 'Give one of these.' } },
    )
  }
  const chain = readChain(path).map(async (link) =>
    (await thumbprint(link.previous)) === keyId ? { ...link, trusted: false } : link,
  )
  writeChain(path, await Promise.all(chain))
}

async function trustedKey(jwk: PublicJwk): Promise<TrustedKey> {
  return { keyId: await thumbprint(jwk), jwk, publicKey: createPublicKey({ key: jwk, format: 'jwk' }) }
}

function readChain(keyPath: string): Chain {
  const path = chainPath(keyPath)
  const text = readIfThere(path)
  if (text === undefined) return []
  try {
    return chainFile.parse(JSON.parse(text))
  } catch (cause) {
    throw new CodedError('KEY_UNUSABLE', `${path} does not contain introductions of signing keys.`, { cause })
  }
}

function writeChain(keyPath: string, chain: Chain): void {
  const path = chainPath(keyPath)
  unlessWritable(path, () => replaceFile(path, `${JSON.stringify(chain, null, 2)}\n`))
}

function unlessWritable(path: string, work: () => void): void {
  try {
    work()
  } catch (cause) {
    throw unwritableState(cause, path, `Cannot write ${path}`)
  }
}
