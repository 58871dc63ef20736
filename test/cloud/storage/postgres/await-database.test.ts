// A twin that is started before its database, as a process: it waits, says so, and ends as asked.
import { type ChildProcess, spawn } from 'node:child_process'
import { mkdtempSync, rmSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { createInterface } from 'node:readline'
import { describe, expect, it, onTestFinished } from 'vitest'
import { PostgresSchema } from '../../../support/postgres-schema.ts'
import { postgres } from '../../../support/servers.ts'
import { ServerProxy } from '../../../support/server-proxy.ts'
import { COMMAND } from '../../../support/command.ts'

interface Line {
  readonly msg: string
  readonly [field: string]: unknown
}

interface Started {
  readonly child: ChildProcess
  /** The next line with this message; lines before it are passed over. Undefined when the process has ended without. */
  readonly line: (message: string) => Promise<Line | undefined>
  readonly ended: Promise<{ readonly code: number | null; readonly stderr: string }>
}

function start(database: string, ...args: readonly string[]): Started {
  const directory = mkdtempSync(join(tmpdir(), 'tallygate-await-'))
  const free = ['--http-port', '0', '--push-broker', 'off', '--store-path', directory]
  const child = spawn(process.execPath, [COMMAND, 'cloud', '--db', database, ...free, ...args], {
    stdio: ['ignore', 'pipe', 'pipe'],
  })
  const lines = createInterface({ input: child.stdout })[Symbol.asyncIterator]()
  let stderr = ''
  child.stderr.on('data', (data: Buffer) => (stderr += data.toString()))
  const ended = new Promise<{ code: number | null; stderr: string }>((resolve) =>
    child.once('close', (code) => resolve({ code, stderr })),
  )
  onTestFinished(async () => {
    child.kill('SIGKILL')
    await ended
    rmSync(directory, { recursive: true })
  })
  const line = async (message: string): Promise<Line | undefined> => {
    for (;;) {
      const { value, done } = await lines.next()
      if (done === true) return undefined
      const parsed = JSON.parse(value) as Line
      if (parsed.msg === message) return parsed
    }
  }
  return { child, line, ended }
}

const WAITS = 'the database does not respond; waiting for it'

describe('a twin whose database does not answer yet', () => {
  const server = postgres()

  const away = async () => {
    const schema = await PostgresSchema.create(server.url)
    const proxy = await ServerProxy.open(schema.url)
    onTestFinished(async () => {
      await proxy[Symbol.asyncDispose]()
      await schema[Symbol.asyncDispose]()
    })
    return { url: proxy.url, back: await proxy.refuse() }
  }

  it('waits for it, logs the wait once, and serves when it responds', async () => {
    const { url, back } = await away()
    const twin = start(url)
    expect(await twin.line(WAITS)).toMatchObject({ code: 'DATABASE_UNREACHABLE', waitMs: 60_000 })
    await back()
    expect(await twin.line('the database responds')).toMatchObject({ attempts: expect.any(Number) as number })
    expect(await twin.line('listening')).toBeDefined()
  })

  it('ends with 69 when the time is over', async () => {
    const { url } = await away()
    const twin = start(url, '--db-wait', '500ms')
    expect(await twin.line(WAITS)).toMatchObject({ waitMs: 500 })
    expect(await twin.ended).toMatchObject({
      code: 69,
      stderr: expect.stringContaining('DATABASE_UNREACHABLE') as string,
    })
  })

  it('ends at once if it must not wait', async () => {
    const { url } = await away()
    const twin = start(url, '--db-wait', '0')
    expect(await twin.line(WAITS)).toBeUndefined()
    expect(await twin.ended).toMatchObject({ code: 69 })
  })

  it('stops cleanly during the wait', async () => {
    const { url } = await away()
    const twin = start(url)
    await twin.line(WAITS)
    twin.child.kill('SIGTERM')
    expect(await twin.ended).toEqual({ code: 0, stderr: '' })
  })

  it('does not wait for one that refuses', async () => {
    const url = new URL(server.url)
    url.pathname = '/there-is-no-such-database'
    const twin = start(url.href)
    expect(await twin.line(WAITS)).toBeUndefined()
    expect(await twin.ended).toMatchObject({ code: 77 })
  })
})
