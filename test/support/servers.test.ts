import { once } from 'node:events'
import { chmod, mkdtemp, readFile, readdir, rm, writeFile } from 'node:fs/promises'
import { createServer } from 'node:net'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { connectAsync } from 'mqtt'
import { startVitest, type TestCase } from 'vitest/node'
import { afterEach, beforeEach, describe, expect, it, vi } from 'vitest'
import { SkippedTests } from './skips.ts'
import { PostgresSchema, runSql } from './postgres-schema.ts'
import { firstOf, fromBinary, fromEnvironment, mosquitto, postgres, type Running, type Way } from './servers.ts'

describe('mosquitto', () => {
  const broker = mosquitto()

  it('gives a broker that carries a message from one client to another', async () => {
    const subscriber = await connectAsync(broker.url, { protocolVersion: 5 })
    const publisher = await connectAsync(broker.url, { protocolVersion: 5 })
    try {
      const topic = `servers-test/${process.pid}`
      const received = new Promise<string>((resolve) => {
        subscriber.once('message', (_topic, payload) => resolve(payload.toString()))
      })
      await subscriber.subscribeAsync(topic, { qos: 1 })
      await publisher.publishAsync(topic, 'revision 42 exists', { qos: 1 })
      expect(await received).toBe('revision 42 exists')
    } finally {
      await subscriber.endAsync()
      await publisher.endAsync()
    }
  })
})

describe('postgres', () => {
  const server = postgres()

  it('gives a server in which schemas are isolated from each other', async () => {
    await using one = await PostgresSchema.create(server.url)
    await using other = await PostgresSchema.create(server.url)
    await runSql(one.url, "CREATE TABLE notes (text TEXT); INSERT INTO notes VALUES ('one')")
    await runSql(other.url, 'CREATE TABLE notes (text TEXT)')
    expect(await runSql(one.url, 'SELECT text FROM notes')).toEqual([{ text: 'one' }])
    expect(await runSql(other.url, 'SELECT text FROM notes')).toEqual([])
  })
})

describe('the ways to a server', () => {
  const open =
    (url: string): Way =>
    () =>
      Promise.resolve({ url, stop: () => Promise.resolve() })
  const closed =
    (reason: string): Way =>
    () =>
      Promise.resolve(reason)

  it('are tried in order, and none after the first that works', async () => {
    const later = vi.fn(open('c:'))
    expect(await firstOf([closed('no a'), open('b:'), later])).toMatchObject({ url: 'b:' })
    expect(later).not.toHaveBeenCalled()
  })

  it('give every reason when none works', async () => {
    expect(await firstOf([closed('no a'), closed('no b')])).toBe('no a; no b')
  })

  it('count an empty environment variable as not set', async () => {
    vi.stubEnv('TALLYGATE_TEST_SAMPLE_URL', '')
    expect(await fromEnvironment('TALLYGATE_TEST_SAMPLE_URL')()).toBe('TALLYGATE_TEST_SAMPLE_URL is not set')
    vi.stubEnv('TALLYGATE_TEST_SAMPLE_URL', 'mqtt://elsewhere:1883')
    expect(await fromEnvironment('TALLYGATE_TEST_SAMPLE_URL')()).toMatchObject({ url: 'mqtt://elsewhere:1883' })
  })
})

describe('a server binary', () => {
  let folder: string
  beforeEach(async () => {
    folder = await mkdtemp(join(tmpdir(), 'tallygate-servers-test-'))
    // The programs are scripts without an extension, whatever the folders above say about modules.
    await writeFile(join(folder, 'package.json'), '{ "type": "commonjs" }')
    vi.stubEnv('PATH', `${folder}:${process.env['PATH'] ?? ''}`)
    vi.stubEnv('TMPDIR', folder)
  })
  afterEach(() => rm(folder, { recursive: true, force: true }))

  const program = async (name: string, body: string): Promise<void> => {
    await writeFile(join(folder, name), `#!${process.execPath}\n${body}\n`)
    await chmod(join(folder, name), 0o755)
  }
  const sample = fromBinary({
    names: ['sample-server'],
    prepare: (_folder, port) => Promise.resolve([String(port)]),
    url: (port) => `tcp://127.0.0.1:${port}`,
  })
  const leftovers = async (): Promise<string[]> =>
    (await readdir(folder)).filter((name) => name.startsWith('tallygate-server-'))

  it('is started on a free port and leaves no process and no folder behind', async () => {
    await program(
      'sample-server',
      `require('node:net').createServer(s => s.end()).listen(+process.argv[2], '127.0.0.1')`,
    )
    const running = (await sample()) as Running
    expect(running.url).toMatch(/^tcp:[/][/]127[.]0[.]0[.]1:\d+$/)
    expect(await leftovers()).toHaveLength(1)
    await running.stop()
    expect(await leftovers()).toEqual([])
    await expect(fetch(running.url.replace('tcp', 'http'))).rejects.toThrow()
  })

  it('that refuses to run as root gets another user, also for what prepares it', async () => {
    // Not by the Node of the tests: another user may not reach it.
    const script = async (name: string, body: string): Promise<void> => {
      await writeFile(join(folder, name), `#!/bin/sh\n${body}\n`)
      await chmod(join(folder, name), 0o755)
    }
    await script('sample-server', 'id -u >"$1"; exec sleep 60')
    await script('sample-init', 'id -u >"$1"')
    await chmod(folder, 0o755)
    let place = ''
    const userIn = async (file: string): Promise<number> => Number(await readFile(join(place, file), 'utf8'))
    const running = (await fromBinary({
      names: ['sample-server'],
      unprivileged: true,
      prepare: async (given, _port, { path, run }) => {
        place = given
        await run(path.replace('sample-server', 'sample-init'), ['prepared-by'])
        return ['run-by']
      },
      url: String,
      ready: () => userIn('run-by').then(Boolean, () => false),
    })()) as Running
    try {
      expect(await userIn('run-by')).toBeGreaterThan(0)
      expect(await userIn('prepared-by')).toBe(await userIn('run-by'))
    } finally {
      await running.stop()
    }
  })

  it('that cannot be prepared is a reason, and leaves nothing behind', async () => {
    await program('sample-server', '')
    const way = fromBinary({
      names: ['sample-server'],
      prepare: () => Promise.reject(new Error('no room')),
      url: String,
    })
    expect(await way()).toContain('could not be prepared (no room)')
    expect(await leftovers()).toEqual([])
  })

  it('is not taken for another process that listens on its port', async () => {
    await program('sample-server', 'setTimeout(() => process.exit(1), 200)')
    const other = createServer()
    const way = fromBinary({
      names: ['sample-server'],
      prepare: async (_folder, port) => {
        if (!other.listening) await once(other.listen(port, '127.0.0.1'), 'listening')
        return [String(port)]
      },
      url: String,
    })
    try {
      expect(await way()).toContain('did not start')
    } finally {
      other.close()
    }
  })

  it('is not there before it does its work', async () => {
    await program(
      'sample-server',
      `require('node:net').createServer(s => s.end()).listen(+process.argv[2], '127.0.0.1')`,
    )
    let asked = 0
    const way = fromBinary({
      names: ['sample-server'],
      prepare: (_folder, port) => Promise.resolve([String(port)]),
      url: (port) => `tcp://127.0.0.1:${port}`,
      ready: () => Promise.resolve((asked += 1) === 3),
    })
    const running = (await way()) as Running
    await running.stop()
    expect(asked).toBe(3)
  })

  it('that ends at once is a reason with its last words, and leaves nothing behind', async () => {
    await program('sample-server', `console.error('cannot open the listener'); process.exit(1)`)
    expect(await sample()).toContain('sample-server did not start (cannot open the listener)')
    expect(await leftovers()).toEqual([])
  })

  it('that is not installed is a reason', async () => {
    expect(await sample()).toBe('no sample-server on PATH')
  })
})

describe('a test whose server is missing', () => {
  /** Runs the sample file in a vitest of its own and returns its only test. */
  async function runSample(require: '0' | '1'): Promise<{ sample: TestCase; errors: string; printed: string }> {
    vi.stubEnv('TALLYGATE_REQUIRE_SERVERS', require)
    let printed = ''
    const exitCode = process.exitCode
    const vitest = await startVitest([], {
      config: false,
      include: ['test/support/missing-server.sample.ts'],
      reporters: [new SkippedTests((text) => (printed += text))],
      watch: false,
    })
    try {
      const module = vitest.state.getTestModules()[0]!
      return {
        printed,
        sample: [...module.children.allTests()][0]!,
        errors: module
          .errors()
          .map((error) => error.message)
          .join('\n'),
      }
    } finally {
      await vitest.close()
      process.exitCode = exitCode
    }
  }

  it('is skipped with the reasons of every way, which the run prints at its end', async () => {
    const { sample, printed } = await runSample('0')
    expect(printed).toBe(
      '\nSkipped tests (1):\n  test/support/missing-server.sample.ts > needs the server: needs nothing-real: no a; no b\n',
    )
    expect(sample.result()).toMatchObject({ state: 'skipped', note: 'needs nothing-real: no a; no b' })
  })

  it('fails where servers are required', async () => {
    const { sample, errors } = await runSample('1')
    expect(errors).toContain('needs nothing-real: no a; no b')
    expect(sample.result().state).not.toBe('passed')
  })
})
