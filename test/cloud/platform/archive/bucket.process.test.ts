import { randomUUID } from 'node:crypto'
import { type IncomingHttpHeaders, createServer } from 'node:http'
import type { AddressInfo } from 'node:net'
import { describe, expect, it, onTestFinished } from 'vitest'
import { type S3Settings, archiveBucket } from '../../../../src/cloud/platform/archive/bucket.ts'
import { Secret } from '../../../../src/settings/option.ts'
import { S3_TEST, s3 } from '../../../support/servers.ts'
import { failed, placeSuite } from './place.suite.ts'

const server = s3()

const never = new AbortController().signal
const settings = (change: Partial<S3Settings> = {}): S3Settings => ({
  endpoint: server.url,
  region: 'us-east-1',
  accessKeyId: S3_TEST.accessKeyId,
  secretAccessKey: new Secret(S3_TEST.secretAccessKey, 'a test'),
  sessionToken: null,
  ...change,
})
const bucket = (change: Partial<S3Settings> = {}, prefix = `/plant/${randomUUID()}`) =>
  archiveBucket(`s3://${S3_TEST.bucket}${prefix}`, settings(change), never)

describe('a bucket', () => {
  placeSuite(() => bucket())

  it('lists only the objects directly below its prefix, however many there are', async () => {
    const prefix = `/plant/${randomUUID()}`
    const place = bucket({}, prefix)
    const names = Array.from({ length: 1_003 }, (_, n) => `usage-${String(n).padStart(4, '0')}`)
    for (let at = 0; at < names.length; at += 50) {
      await Promise.all(names.slice(at, at + 50).map((name) => place.create(name, Buffer.from(name))))
    }
    await bucket({}, `${prefix}/below`).create('other', Buffer.from('x'))
    await bucket({}, `${prefix}2`).create('other', Buffer.from('x'))
    expect((await place.list()).toSorted()).toEqual(names)
  })

  it('that refuses is reported with the reason, without the credentials', async () => {
    const wrong = bucket({ secretAccessKey: new Secret('not-the-secret', 'a test') })
    const works = [() => wrong.list(), () => wrong.get('a'), () => wrong.create('a', Buffer.from('x'))]
    for (const work of works) {
      const message = await failed(work())
      expect(message).toContain('SignatureDoesNotMatch')
      expect(message).not.toMatch(/not-the-secret|test-/)
    }
    expect(await failed(archiveBucket('s3://no-such-bucket/a', settings(), never).get('a'))).toContain('NoSuchBucket')
  })

  it('that cannot be reached is named', async () => {
    const closed = createServer().listen(0, '127.0.0.1')
    await new Promise((resolve) => closed.once('listening', resolve))
    const { port } = closed.address() as AddressInfo
    await new Promise((resolve) => closed.close(resolve))
    expect(await failed(bucket({ endpoint: `http://127.0.0.1:${port}` }).list())).toContain(`127.0.0.1:${port}`)
  })

  /** A store that answers with this. */
  const answering = async (answer: (headers: IncomingHttpHeaders) => { status: number; body: string }) => {
    const fake = createServer(({ headers }, response) => {
      const { status, body } = answer(headers)
      response.writeHead(status).end(body)
    }).listen(0, '127.0.0.1')
    onTestFinished(() => void fake.close())
    await new Promise((resolve) => fake.once('listening', resolve))
    return bucket({ endpoint: `http://127.0.0.1:${(fake.address() as AddressInfo).port}` })
  }

  it('that fails for a moment is asked again', async () => {
    let calls = 0
    const place = await answering(() => {
      calls += 1
      return calls < 3
        ? { status: 503, body: '<Error><Code>SlowDown</Code></Error>' }
        : { status: 200, body: '<ListBucketResult/>' }
    })
    expect(await place.list()).toEqual([])
    expect(calls).toBe(3)
  })

  it.each([
    ['is a page of the network', '<html>Sign in</html>', 'contains no list'],
    ['does not say where it continues', '<IsTruncated>true</IsTruncated>', 'is incomplete'],
    ['continues at itself', '<NextContinuationToken>A</NextContinuationToken>', 'is incomplete'],
  ])('whose list %s is not taken for a complete one', async (_what, part, reason) => {
    const body = part.startsWith('<html>') ? part : `<ListBucketResult>${part}</ListBucketResult>`
    const place = await answering(() => ({ status: 200, body }))
    expect(await failed(place.list())).toContain(reason)
  })

  it('without conditional writes gets plain ones', async () => {
    const isConditional: boolean[] = []
    const place = await answering((headers) => {
      isConditional.push('if-none-match' in headers)
      return { status: 'if-none-match' in headers ? 501 : 200, body: '' }
    })
    expect(await place.create('a', Buffer.from('x'))).toBe(true)
    expect(isConditional.at(-1)).toBe(false)
  })

  it.each([
    ['http://x/y', {}],
    ['s3://', {}],
    ['s3://Bucket', {}],
    ['s3://usage/a b', {}],
    ['s3://usage', { accessKeyId: null }],
    ['s3://usage', { secretAccessKey: null }],
    ['s3://usage', { endpoint: 'https://ada:s3cret@store.example' }],
    ['s3://usage', { endpoint: 'https://s3cret@store.example/s3' }],
    ['s3://usage', { endpoint: 'https://store.example?key=s3cret' }],
  ])('%s with %o is refused before any request', (address, change) => {
    expect(() => archiveBucket(address, settings(change), never)).toThrow(
      expect.objectContaining({ code: 'CONFIG_INVALID', message: expect.not.stringContaining('s3cret') as string }),
    )
  })

  it('without a key names the settings file that has it', () => {
    expect(() => archiveBucket('s3://usage', settings({ accessKeyId: null }), never)).toThrow(
      /name another settings file in TALLYGATE_CLOUD_CONFIG/,
    )
  })
})
