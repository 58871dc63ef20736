/** A bucket of an S3-compatible store with archives. A whole object appears at once, after its hash was checked. */
import { hash } from 'node:crypto'
import { AwsClient } from 'aws4fetch'
import { CodedError } from '../../../protocol/errors.ts'
import { prepareFetch } from '../../../platform/outgoing.ts'
import type { Secret } from '../../../settings/option.ts'
import type { ArchivePlace } from '../../usage/archive/place.ts'

export interface S3Settings {
  /** Null: Amazon S3. */
  readonly endpoint: string | null
  readonly region: string
  readonly accessKeyId: string | null
  readonly secretAccessKey: Secret | null
  readonly sessionToken: Secret | null
}

const TIMEOUT_MS = 120_000

const RETRIES_MAX = 3

function keyMissing(address: string): CodedError {
  return new CodedError(
    'CONFIG_INVALID',
    `${address} needs s3.access_key_id and s3.secret_access_key. Set them in /etc/tallygate/cloud.toml, or name another settings file in TALLYGATE_CLOUD_CONFIG.`,
  )
}

function partsOf(address: string): { readonly bucket: string; readonly prefix: string } {
  const { bucket, prefix = '' } =
    /^s3:\/\/(?<bucket>[a-z0-9][a-z0-9.-]{1,61}[a-z0-9])(?:\/(?<prefix>[\w./=-]*?))?\/?$/.exec(address)?.groups ?? {}
  if (bucket !== undefined) return { bucket, prefix }
  throw new CodedError(
    'CONFIG_INVALID',
    `${address} does not have the form s3://bucket/prefix: a bucket has 3 to 63 lowercase letters, digits, "." and "-", and a prefix has letters, digits and "_./=-".`,
  )
}

/** @param address `s3://bucket/prefix`. @throws CodedError CONFIG_INVALID */
export function archiveBucket(address: string, settings: S3Settings, stop: AbortSignal): ArchivePlace {
  const { bucket, prefix } = partsOf(address)
  const { region, accessKeyId, secretAccessKey, sessionToken } = settings
  if (accessKeyId === null || secretAccessKey === null) throw keyMissing(address)
  // Names with dots do not fit a certificate for hosts.
  const base = `${serviceOf(settings)}/${bucket}`
  // The library uses the global `fetch`.
  prepareFetch(base, process.env)
  const client = new AwsClient({
    accessKeyId,
    secretAccessKey: secretAccessKey.reveal(),
    ...(sessionToken === null ? {} : { sessionToken: sessionToken.reveal() }),
    region,
    service: 's3',
    retries: RETRIES_MAX,
  })
  const folder = prefix === '' ? '' : `${prefix}/`
  const call = async (method: string, path: string, body?: Buffer, headers: Readonly<Record<string, string>> = {}) => {
    try {
      const response = await client.fetch(`${base}${path}`, {
        method,
        // The store refuses a body that arrives changed.
        headers: { 'x-amz-content-sha256': hash('sha256', body ?? ''), ...headers },
        signal: AbortSignal.any([stop, AbortSignal.timeout(TIMEOUT_MS)]),
        ...(body === undefined ? {} : { body: new Uint8Array(body) }),
      })
      return { status: response.status, text: Buffer.from(await response.arrayBuffer()) }
    } catch (cause) {
      const { origin } = new URL(base)
      throw new CodedError('ARCHIVE_UNAVAILABLE', `${origin} cannot be reached: ${reasonOf(cause)}`, { cause })
    }
  }
  return {
    name: `s3://${bucket}${prefix === '' ? '' : `/${prefix}`}`,
    async list() {
      const names: string[] = []
      for (let token: string | null = ''; token !== null;) {
        const query = new URLSearchParams({ 'list-type': '2', prefix: folder, delimiter: '/' })
        if (token !== '') query.set('continuation-token', token)
        const { status, text } = await call('GET', `?${query.toString()}`)
        const page = text.toString('utf8')
        if (status !== 200) throw refused(address, 'LIST', status, page)
        if (!page.includes('<ListBucketResult')) throw unlisted(address, 'contains no list')
        for (const [, key = ''] of page.matchAll(/<Key>([^<]*)<\/Key>/g))
          names.push(key.slice(key.lastIndexOf('/') + 1))
        const next: string | null = /<NextContinuationToken>([^<]+)</.exec(page)?.[1] ?? null
        if (next === null ? page.includes('<IsTruncated>true<') : next === token)
          throw unlisted(address, 'is incomplete and does not say where it continues')
        token = next
      }
      return names
    },
    async get(name) {
      const { status, text } = await call('GET', `/${folder}${name}`)
      if (status === 200) return text
      const answer = text.toString('utf8')
      if (status === 404 && !answer.includes('NoSuchBucket')) return null
      throw refused(address, `GET ${name}`, status, answer)
    },
    async create(name, body) {
      const path = `/${folder}${name}`
      let { status, text } = await call('PUT', path, body, { 'if-none-match': '*' })
      // The store cannot do it.
      if (status === 501) ({ status, text } = await call('PUT', path, body))
      if (status === 412) return false
      if (status !== 200) throw refused(address, `PUT ${name}`, status, text.toString('utf8'))
      return true
    },
  }
}

function serviceOf({ endpoint, region }: S3Settings): string {
  if (endpoint === null) return `https://s3.${region}.amazonaws.com`
  const { username, password, search, hash: fragment } = new URL(endpoint)
  // Credentials belong in settings that no message shows.
  if ([username, password, search, fragment].every((part) => part === '')) return endpoint.replace(/\/+$/, '')
  throw new CodedError(
    'CONFIG_INVALID',
    's3.endpoint takes an address without user, query and fragment. Put the key into s3.access_key_id and s3.secret_access_key.',
  )
}

/** `fetch` gives the reason of the network as the cause. */
function reasonOf(error: unknown): string {
  if (!(error instanceof Error)) return String(error)
  return error.cause instanceof Error && error.cause.message !== '' ? error.cause.message : error.message
}

function unlisted(address: string, why: string): CodedError {
  return new CodedError('ARCHIVE_UNAVAILABLE', `The response to LIST in ${address} ${why}.`)
}

/** Other parts of the response may name the credentials. */
function refused(address: string, what: string, status: number, answer: string): CodedError {
  const code = /<Code>([\w.]{1,100})<\/Code>/.exec(answer)?.[1]
  return new CodedError(
    'ARCHIVE_UNAVAILABLE',
    `${what} in ${address} was refused: status ${status}${code === undefined ? '' : `, ${code}`}.`,
  )
}
