/** A compact JWS; a long one compressed, with its parts decoded, as base64url hides every repetition. */
import { compress, decompress } from '../../../protocol/zstd.ts'
import { unlessDamaged } from './unless-damaged.ts'

/** First byte of the packed text: the payload is decoded, or the document is as it was. */
const [DECODED, PLAIN] = ['D', 'P']

/** Compressing a shorter one takes longer than storing it. */
const LONG = 4_096

export function packDocument(document: string): Buffer {
  if (document.length < LONG) return Buffer.from(PLAIN + document)
  const [header = '', payload = '', signature = ''] = document.split('.')
  const decoded = Buffer.from(payload, 'base64url')
  // Other documents are no JWS in the one form that can be made again.
  if (`${header}.${decoded.toString('base64url')}.${signature}` !== document) {
    return compress(PLAIN + document)
  }
  const head = Buffer.from(`${DECODED}${header}.${signature}.`)
  return compress(Buffer.concat([head, decoded]))
}

export function unpackDocument(packed: Buffer): string {
  // What zstd has compressed begins with another byte.
  const isShort = packed[0] === PLAIN.charCodeAt(0)
  const bytes = isShort ? packed : unlessDamaged('last_segments', () => decompress(packed))
  const text = bytes.toString('latin1')
  if (text.startsWith(PLAIN)) return bytes.subarray(1).toString('utf8')
  const endOfHeader = text.indexOf('.')
  const endOfSignature = text.indexOf('.', endOfHeader + 1)
  const payload = bytes.subarray(endOfSignature + 1).toString('base64url')
  return `${text.slice(1, endOfHeader)}.${payload}.${text.slice(endOfHeader + 1, endOfSignature)}`
}
