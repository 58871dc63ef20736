// A production line against a real twin: broken off, run again, with devices that enroll in between.
import { generateKeyPairSync } from 'node:crypto'
import { existsSync, mkdtempSync, readFileSync, readdirSync, rmSync, statSync, writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { describe, expect, it, onTestFinished } from 'vitest'
import { parseDeviceList } from '../../src/cli/provisioning.ts'
import { makeAccessToken } from '../../src/client/access-token.ts'
import { TwinProcess } from '../cloud/twin-process.ts'
import { tallygate } from './outside.ts'

const NOWHERE = '64d2028c-ae87-4069-a624-66089d957ef9'

class Line {
  readonly #twin: TwinProcess
  readonly #directory: string
  readonly #key: string
  readonly out: string
  readonly instance: string
  now = Date.now()

  private constructor(twin: TwinProcess, directory: string, instance: string) {
    this.#twin = twin
    this.#directory = directory
    this.#key = join(directory, 'cloud', 'administration-key.pem')
    this.out = join(directory, 'tokens')
    this.instance = instance
  }

  static async start(): Promise<Line> {
    const directory = mkdtempSync(join(tmpdir(), 'tallygate-line-'))
    const twin = await TwinProcess.start(['--store-path', join(directory, 'cloud')])
    onTestFinished(async () => {
      await twin[Symbol.asyncDispose]()
      rmSync(directory, { recursive: true, force: true })
    })
    const privateKey = readFileSync(join(directory, 'cloud', 'administration-key.pem'), 'utf8')
    const claims = { kind: 'ADMIN', instanceIds: [], issuer: 'test', now: Date.now(), lifetimeMs: 300_000 } as const
    const made = await fetch(`${twin.address}/provisioning/api/v1.1/instances`, {
      method: 'POST',
      headers: {
        authorization: `Bearer ${await makeAccessToken({ ...claims, privateKey })}`,
        'content-type': 'application/json',
      },
      body: JSON.stringify({ shortName: 'Line', accountId: 'me' }),
    })
    return new Line(twin, directory, ((await made.json()) as { id: string }).id)
  }

  /** Runs the command over these lines of the list. */
  async run(...rows: string[]) {
    const list = join(this.#directory, 'list.csv')
    writeFileSync(list, `name,instances\n${rows.join('\n')}\n`)
    const args = ['--url', this.#twin.address, '--admin-key', this.#key, '--out', this.out, '--json']
    const world = { readText: (path: string) => readFileSync(path, 'utf8'), now: () => this.now }
    const { code, out, err } = await tallygate(['devices', 'provision', list, ...args], world)
    const told = out
      .trimEnd()
      .split('\n')
      .filter((text) => text !== '')
      .map((text) => JSON.parse(text) as Record<string, unknown>)
    return { code, err, states: told.map(({ name, state }) => `${String(name)} ${String(state)}`), told }
  }

  token(name: string): string {
    return readFileSync(join(this.out, `${name}.token`), 'utf8').trim()
  }

  /** What the device does with its token. */
  async enroll(name: string): Promise<number> {
    const jwk = generateKeyPairSync('ed25519').publicKey.export({ format: 'jwk' })
    const answer = await fetch(`${this.#twin.address}/edge/api/v1/enrollments`, {
      method: 'POST',
      headers: { authorization: `Bearer ${this.token(name)}`, 'content-type': 'application/json' },
      body: JSON.stringify({ publicKey: { kty: jwk.kty, crv: jwk.crv, x: jwk.x } }),
    })
    return answer.status
  }
}

describe('a production line', () => {
  it('makes a token for each device that it can enroll with, and does nothing twice', async () => {
    const line = await Line.start()
    const rows = ['press-1', 'press-2', 'press-3'].map((name) => `${name},${line.instance}`)
    expect(await line.run(...rows)).toMatchObject({
      code: 0,
      err: '',
      states: ['press-1 issued', 'press-2 issued', 'press-3 issued'],
    })
    expect(readdirSync(line.out).sort()).toEqual(['press-1.token', 'press-2.token', 'press-3.token'])
    expect(statSync(join(line.out, 'press-1.token')).mode & 0o777).toBe(0o600)
    const kept = line.token('press-2')
    expect(await line.enroll('press-1')).toBe(200)
    expect((await line.run(...rows, `press-4,${line.instance}`)).states).toEqual([
      'press-1 enrolled',
      'press-2 waiting',
      'press-3 waiting',
      'press-4 issued',
    ])
    expect(line.token('press-2')).toBe(kept)
  })

  it('makes anew what was lost, cut off, or is about to end', async () => {
    const line = await Line.start()
    const rows = ['a', 'b', 'c'].map((name) => `${name},${line.instance}`)
    await line.run(...rows)
    rmSync(join(line.out, 'a.token'))
    writeFileSync(join(line.out, 'b.token'), line.token('b').slice(0, 50))
    expect((await line.run(...rows)).states).toEqual(['a issued', 'b issued', 'c waiting'])
    line.now += 23.5 * 3_600_000
    expect((await line.run(rows[2]!)).states).not.toEqual(['c waiting'])
  })

  it('tells which device failed and why, and continues with the others', async () => {
    const line = await Line.start()
    const { code, told } = await line.run(`a,${NOWHERE}`, `b,${line.instance}`)
    expect(code).toBe(1)
    expect(told).toMatchObject([
      { name: 'a', state: 'failed', problem: expect.stringContaining('NOT_FOUND') as string },
      { name: 'b', state: 'issued' },
    ])
    expect(existsSync(join(line.out, 'a.token'))).toBe(false)
  })
})

describe('a list of devices', () => {
  it('is read, with comments, blank lines and the line ends of other systems', () => {
    const text = `\uFEFFname, instances\r\n# the first\r\n\r\n a-1 , ${NOWHERE}  ${NOWHERE} \r\n`
    expect(parseDeviceList(text)).toEqual([{ name: 'a-1', instanceIds: [NOWHERE, NOWHERE], labels: {} }])
  })

  it('can have a column of labels', () => {
    const list = (labels: string) => parseDeviceList(`name,instances,labels\na,${NOWHERE},${labels}\n`)
    expect(list('site=berlin line=3')[0]?.labels).toEqual({ site: 'berlin', line: '3' })
    expect(() => list('berlin')).toThrow(/line 2: The label "berlin" is not valid/)
  })

  it('that is wrong somewhere is refused with the first lines that are', () => {
    const text = `name,instances\n../evil,${NOWHERE}\na,${NOWHERE}\na,${NOWHERE}\nb,none\nc,${NOWHERE},a=b,more\n`
    expect(() => parseDeviceList(text)).toThrow(/line 2: .*; line 4: a appears twice; line 5: .*; line 6: /)
    expect(() => parseDeviceList('a,b\n')).toThrow(expect.objectContaining({ code: 'USAGE' }))
    const long = `name,instances\n${'a,none\n'.repeat(20_000)}`
    expect(() => parseDeviceList(long)).toThrow(
      /^The list is invalid: line 2: .*; line 11: [^;]*; and 19,990 more problems\.$/,
    )
  })
})
