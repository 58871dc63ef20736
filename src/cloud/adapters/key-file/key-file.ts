/**
 * Private keys that the twin makes for itself, one PEM file each, which nobody but its user can read. A file that is there
 * is used; one that is not is made, durably, before anybody hears of the key.
 */
import { type KeyObject, createPrivateKey, generateKeyPairSync } from 'node:crypto'
import { closeSync, fsyncSync, openSync, readFileSync, renameSync, writeSync } from 'node:fs'
import { dirname } from 'node:path'
import { CodedError } from '../../../protocol/errors.ts'

export type KeyKind = 'P-256' | 'Ed25519'

export interface KeyFile {
  readonly privateKey: KeyObject
  /** Whether it was made just now. */
  readonly made: boolean
}

/** @throws CodedError KEY_UNUSABLE, STATE_UNWRITABLE */
export function openKeyFile(path: string, kind: KeyKind): KeyFile {
  const pem = readIfThere(path)
  if (pem === undefined) return { privateKey: make(path, kind), made: true }
  let privateKey: KeyObject
  try {
    privateKey = createPrivateKey(pem)
  } catch (cause) {
    throw new CodedError('KEY_UNUSABLE', `${path} holds no private key in PEM.`, { cause })
  }
  if (!isOf(kind, privateKey)) throw new CodedError('KEY_UNUSABLE', `${path} holds a key that is not ${kind}.`)
  return { privateKey, made: false }
}

function isOf(kind: KeyKind, key: KeyObject): boolean {
  if (kind === 'Ed25519') return key.asymmetricKeyType === 'ed25519'
  return key.asymmetricKeyType === 'ec' && key.asymmetricKeyDetails?.namedCurve === 'prime256v1'
}

function readIfThere(path: string): string | undefined {
  try {
    return readFileSync(path, 'utf8')
  } catch (cause) {
    if ((cause as NodeJS.ErrnoException).code === 'ENOENT') return undefined
    throw new CodedError('KEY_UNUSABLE', `${path} cannot be read.`, { cause })
  }
}

function make(path: string, kind: KeyKind): KeyObject {
  const { privateKey } =
    kind === 'P-256' ? generateKeyPairSync('ec', { namedCurve: 'P-256' }) : generateKeyPairSync('ed25519')
  const temporary = `${path}.new`
  try {
    const file = openSync(temporary, 'w', 0o600)
    try {
      writeSync(file, privateKey.export({ type: 'pkcs8', format: 'pem' }))
      fsyncSync(file)
    } finally {
      closeSync(file)
    }
    renameSync(temporary, path)
    const directory = openSync(dirname(path), 'r')
    try {
      fsyncSync(directory)
    } finally {
      closeSync(directory)
    }
  } catch (cause) {
    throw new CodedError('STATE_UNWRITABLE', `${path} cannot be written.`, { cause })
  }
  return privateKey
}
