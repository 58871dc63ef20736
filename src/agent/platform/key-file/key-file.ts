/** The key is used only after its file is flushed: a device that enrolled with a lost key could never return. */
import { createPrivateKey, type KeyObject, randomUUID } from 'node:crypto'
import { link, rename, stat, unlink, writeFile } from 'node:fs/promises'
import { dirname, join } from 'node:path'
import { z } from 'zod'
import { type KeyLink, keyLink } from '../../../protocol/edge/device-key.ts'
import { CodedError } from '../../../protocol/errors.ts'
import { parseJson } from '../../../protocol/parse-json.ts'
import { remedyOfDenial, systemFailure, unreadableReason, unwritableState } from '../../../protocol/file-reasons.ts'
import { shellWord } from '../../../protocol/shell-quoted.ts'
import { flush } from '../../../platform/flush.ts'
import { nameUser, readSmallText } from '../../../platform/read-file.ts'
import { generateKey, isP256, publicJwkOf, thumbprint } from '../../../protocol/signing.ts'
import type { DeviceKey, DeviceKeys } from '../../keys/device-key.ts'
import type { AgentSettings } from '../../settings.ts'

const FOR_OWNER = { mode: 0o600, flush: true }

export interface KeyFileOptions {
  readonly path: string
  /** Generates a P-256 key pair if the file is missing. False for a provided key. */
  readonly create: boolean
}

/**
 * @param mayBeNew called if the file is missing
 * @throws CodedError DEVICE_KEY_UNUSABLE, also if others can read it; STATE_UNWRITABLE for a new key; of {@link systemFailure}
 */
export async function openKeyFile(options: KeyFileOptions, mayBeNew?: () => Promise<boolean>): Promise<DeviceKey> {
  return deviceKey(await readOrCreate(options, mayBeNew), options.path)
}

async function readOrCreate(
  { path, create }: KeyFileOptions,
  mayBeNew: () => Promise<boolean> = async () => true,
): Promise<string> {
  // Service managers provide keys with an access list, which shows as group permissions.
  const closedTo = create ? 0o077 : 0o007
  const existing = await read(path, closedTo)
  if (existing !== undefined) return existing
  if (!create) throw unusable(path, 'there is no such file')
  if (!(await mayBeNew())) throw unusable(path, 'there is no such file, and the ledger is of a device that has a key')
  await write(path)
  const written = await read(path, closedTo)
  if (written === undefined) throw unusable(path, 'it was removed as soon as it was written')
  return written
}

export interface KeyFilesOptions extends KeyFileOptions {
  /** Path of the next key: generated on demand, or provided. Null: none is provided. */
  readonly nextPath: string | null
}

/**
 * @param mayBeNew called if the file of the current key is missing
 * @throws CodedError as {@link openKeyFile}, for either file; the next key may be missing
 */
export async function openKeyFiles(options: KeyFilesOptions, mayBeNew?: () => Promise<boolean>): Promise<DeviceKeys> {
  const { create, nextPath } = options
  const own = await readOrCreate(options, mayBeNew)
  const current = await deviceKey(own, options.path)
  const text = nextPath === null ? undefined : await read(nextPath, create ? 0o077 : 0o007)
  const next = text === undefined || nextPath === null ? null : await deviceKey(text, nextPath)
  const isOther = next !== null && next.signer.keyId !== current.signer.keyId
  return new KeyFiles(options, { current, next: isOther ? next : null, links: linksIn(own) })
}

/** A generated next key is renamed over the current one; provided files are only read. */
class KeyFiles implements DeviceKeys {
  readonly #options: KeyFilesOptions
  #current: DeviceKey
  #next: DeviceKey | null
  #links: readonly KeyLink[]

  constructor(options: KeyFilesOptions, { current, next, links }: Pick<DeviceKeys, 'current' | 'next' | 'links'>) {
    this.#options = options
    this.#current = current
    this.#next = next
    this.#links = links
  }

  get current(): DeviceKey {
    return this.#current
  }

  get next(): DeviceKey | null {
    return this.#next
  }

  get links(): readonly KeyLink[] {
    return this.#links
  }

  async prepare(): Promise<DeviceKey> {
    const { create, nextPath, path } = this.#options
    if (this.#next !== null) return this.#next
    if (!create || nextPath === null) {
      throw new CodedError(
        'DEVICE_KEY_PROVIDED',
        `The key of this device is provided as ${path}, without a next key. Provide one in device.next_key_file.`,
      )
    }
    this.#next = await openKeyFile({ path: nextPath, create })
    return this.#next
  }

  async discard(): Promise<void> {
    const { create, nextPath } = this.#options
    if (!create || nextPath === null) return
    await changed(nextPath, () => unlink(nextPath).catch(ignoreMissing))
    this.#next = null
  }

  async replace(links: readonly KeyLink[]): Promise<void> {
    const { create, nextPath, path } = this.#options
    const next = this.#next
    if (next === null || nextPath === null) throw new Error('invariant: a next key exists')
    if (create) {
      // A full disk must not stop the change: the ledger has the links, too.
      await addLinks(nextPath, next, links).catch(() => undefined)
      await changed(path, () => rename(nextPath, path))
    }
    this.#current = next
    this.#next = null
    this.#links = links
  }
}

/** Renames or removes a key file durably. @throws CodedError STATE_UNWRITABLE */
async function changed(path: string, change: () => Promise<void>): Promise<void> {
  try {
    await change()
    flush(dirname(path))
  } catch (cause) {
    throw unwritableState(cause, path, `The key file ${path} cannot be renamed or removed`)
  }
}

async function read(path: string, closedTo: number): Promise<string | undefined> {
  try {
    const found = await stat(path)
    if (found.isFile() && (found.mode & closedTo) !== 0) {
      const remedy = `Run \`chmod 600 ${shellWord(path)}\` as its owner or root. If another user may have copied it, change the key afterwards (\`tallygate rotate-key\`).`
      throw unusable(path, `its mode 0${(found.mode & 0o777).toString(8)} lets other users access it`, {
        details: { remedy },
      })
    }
    return readSmallText(path)
  } catch (cause) {
    if (cause instanceof CodedError) throw cause
    if (errnoOf(cause) === 'ENOENT') return undefined
    // Of `stat`, which does not name the user.
    nameUser(cause)
    throw (
      systemFailure(cause, path) ??
      unusable(path, unreadableReason(cause), { cause, details: remedyOfDenial(cause, path) })
    )
  }
}

/** Atomic write: the file appears only after its bytes are flushed, and never replaces another key. */
async function write(path: string): Promise<void> {
  const privateKey = generateKey()
  const temporary = `${path}.${randomUUID()}.new`
  try {
    await writeFile(temporary, pemOf(privateKey), { ...FOR_OWNER, flag: 'wx' })
    await link(temporary, path)
    await unlink(temporary)
    flush(dirname(path))
  } catch (cause) {
    await unlink(temporary).catch(ignoreMissing)
    // Another process created the key first: use that one.
    if (errnoOf(cause) === 'EEXIST') return
    throw unwritableState(cause, path, `The key file ${path} cannot be written`)
  }
}

function pemOf(privateKey: KeyObject): string {
  return privateKey.export({ format: 'pem', type: 'pkcs8' })
}

/** Atomic. */
async function addLinks(path: string, { signer }: DeviceKey, links: readonly KeyLink[]): Promise<void> {
  const temporary = `${path}.new`
  try {
    await writeFile(temporary, `${pemOf(signer.privateKey)}${JSON.stringify(links)}\n`, FOR_OWNER)
    await rename(temporary, path)
  } catch (error) {
    await unlink(temporary)
    throw error
  }
}

/** They follow the key as JSON. A key without readable ones can still be used. */
function linksIn(text: string): readonly KeyLink[] {
  const [, json = ''] = text.split(/^-----END .*$/m)
  return z.array(keyLink).safeParse(parseJson(json)).data ?? []
}

async function deviceKey(pem: string, path: string): Promise<DeviceKey> {
  const privateKey = parse(pem, path)
  if (privateKey.asymmetricKeyType !== 'ed25519' && !isP256(privateKey))
    throw unusable(path, 'it contains neither an Ed25519 nor a P-256 key')
  const publicJwk = publicJwkOf(privateKey)
  return { publicJwk, signer: { keyId: await thumbprint(publicJwk), privateKey } }
}

function parse(pem: string, path: string): KeyObject {
  try {
    return createPrivateKey(pem)
  } catch (cause) {
    throw unusable(path, 'it contains no PEM private key without a passphrase', { cause })
  }
}

function unusable(path: string, reason: string, options?: ConstructorParameters<typeof CodedError>[2]): CodedError {
  return new CodedError('DEVICE_KEY_UNUSABLE', `The key file ${path} cannot be used: ${reason}.`, options)
}

function errnoOf(error: unknown): string | undefined {
  const { code } = error as { code?: unknown }
  return typeof code === 'string' ? code : undefined
}

function ignoreMissing(error: unknown): void {
  if (errnoOf(error) !== 'ENOENT') throw error
}

export function ownKeyFile(stateDirectory: string): string {
  return join(stateDirectory, 'device.key')
}

export function keyFilesOf({ state, device }: Pick<AgentSettings, 'state' | 'device'>): KeyFilesOptions {
  if (device.keyFile !== null) return { path: device.keyFile, nextPath: device.nextKeyFile, create: false }
  const path = ownKeyFile(state.directory)
  return { path, nextPath: `${path}.next`, create: true }
}
