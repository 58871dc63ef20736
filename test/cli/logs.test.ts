// `tallygate logs`: lines from the journal of systemd, from a running agent, or from a file, filtered and made readable.
import { chmodSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import { expect, test } from 'vitest'
import { LogBuffer } from '../../src/agent/diagnostics/log-buffer.ts'
import { readable } from '../../src/cli/log-lines.ts'
import { AGENT_LOG_PATH } from '../../src/protocol/local/log.ts'
import { temporaryDirectory } from '../agent/harness.ts'
import { fakeService } from './fake-service.ts'
import { tallygate } from './outside.ts'

const ID = '5c8ec4fd-f17f-4657-bf09-74a97ddc9f8b'
const LINES = [
  { level: 30, time: 1_800_000_000_000, socket: '/run/tallygate/agent.sock', status: null, msg: 'listening' },
  { level: 40, time: 1_800_000_001_000, code: 'POLICY_STALE', sessionId: ID, msg: 'a session could not be advanced' },
  { level: 50, time: 1_800_000_002_000, err: { message: 'boom' }, msg: 'a request failed unexpectedly' },
].map((line) => JSON.stringify(line))
const NDJSON = `${LINES.join('\n')}\n`

/** A directory with a `journalctl` that says this, and nothing else on the path. */
function journal(script: string): { readonly PATH: string } {
  const directory = temporaryDirectory()
  const path = join(directory, 'journalctl')
  writeFileSync(path, `#!/bin/sh\n${script}\n`)
  chmodSync(path, 0o755)
  return { PATH: `${directory}:/bin:/usr/bin` }
}

const NO_JOURNAL = { PATH: '/nowhere' }

test('a running agent is asked where there is no journal, and its lines are made readable', async () => {
  await using agent = await fakeService('socket', { [`GET ${AGENT_LOG_PATH}`]: { body: NDJSON } })
  const env = { ...NO_JOURNAL, TALLYGATE_AGENT_SOCKET_PATH: agent.address }
  const { code, out } = await tallygate(['logs'], { env })
  expect(code).toBe(0)
  expect(out.split('\n')).toEqual([
    '2027-01-15T08:00:00.000Z INFO  listening socket=/run/tallygate/agent.sock',
    `2027-01-15T08:00:01.000Z WARN  a session could not be advanced code=POLICY_STALE sessionId=${ID}`,
    '2027-01-15T08:00:02.000Z ERROR a request failed unexpectedly err={"message":"boom"}',
    '',
  ])
  const shown = async (...args: readonly string[]) => (await tallygate(['logs', ...args], { env })).out
  expect((await shown('--level', 'warn')).split('\n')).toHaveLength(3)
  expect(await shown('--id', ID.toUpperCase())).toMatch(/^[^\n]*advanced[^\n]*\n$/)
  expect(await shown('--lines', '1')).toMatch(/^[^\n]*failed unexpectedly[^\n]*\n$/)
  expect(await shown('--json')).toBe(NDJSON)
})

test('the journal of systemd goes first, with the unit that is named; its own lines are kept for people', async () => {
  const env = journal(`echo "$@" >&2; [ "$6" = other ] && echo 'Started.' && echo '${LINES[1]!}'`)
  const { out } = await tallygate(['logs', '--unit', 'other'], { env })
  expect(out).toBe(
    `Started.\n2027-01-15T08:00:01.000Z WARN  a session could not be advanced code=POLICY_STALE sessionId=${ID}\n`,
  )
  expect((await tallygate(['logs', '--unit', 'other', '--json'], { env })).out).toBe(`${LINES[1]!}\n`)
})

test('--follow shows each new line of a running agent once, until it is stopped', async () => {
  const answer = { [`GET ${AGENT_LOG_PATH}`]: { body: `${LINES[0]!}\n` } }
  await using agent = await fakeService('socket', answer)
  const stop = new AbortController()
  const written: string[] = []
  const stdout = {
    write: (text: string) => {
      written.push(text)
      if (written.length === 1) answer[`GET ${AGENT_LOG_PATH}`] = { body: NDJSON }
      if (written.length === 3) stop.abort()
    },
  }
  const env = { ...NO_JOURNAL, TALLYGATE_AGENT_SOCKET_PATH: agent.address }
  const { code } = await tallygate(['logs', '--follow', '--json'], { env, stdout, stop: () => stop.signal })
  expect({ code, written }).toEqual({ code: 0, written: LINES.map((line) => `${line}\n`) })
})

test('--follow passes on the journal of systemd while it grows', async () => {
  const env = journal(`echo '${LINES[0]!}'; case "$*" in *--follow*) echo '${LINES[1]!}'; exec sleep 600;; esac`)
  const stop = new AbortController()
  const written: string[] = []
  const stdout = {
    write: (text: string) => {
      written.push(text)
      if (written.length === 2) stop.abort()
    },
  }
  const { code } = await tallygate(['logs', '--follow', '--json'], { env, stdout, stop: () => stop.signal })
  expect({ code, written }).toEqual({ code: 0, written: LINES.slice(0, 2).map((line) => `${line}\n`) })
})

test('a journal that has nothing of the unit, or fails, is as none', async () => {
  await using agent = await fakeService('socket', { [`GET ${AGENT_LOG_PATH}`]: { body: NDJSON } })
  for (const script of ['true', 'echo "No journal files were opened" >&2; exit 1']) {
    const env = { ...journal(script), TALLYGATE_AGENT_SOCKET_PATH: agent.address }
    expect((await tallygate(['logs', '--json'], { env })).out).toBe(NDJSON)
  }
})

test('a unit that is named has its lines in the journal, or none are shown', async () => {
  await using agent = await fakeService('socket', { [`GET ${AGENT_LOG_PATH}`]: { body: NDJSON } })
  const env = { ...journal('true'), TALLYGATE_AGENT_SOCKET_PATH: agent.address }
  for (const more of [[], ['--follow']]) {
    const { code, out, err } = await tallygate(['logs', '--unit', 'NOPE', ...more], { env })
    expect({ code, out }).toEqual({ code: 66, out: '' })
    expect(err).toMatch(/^tallygate: LOG_UNREADABLE: The journal has no lines of unit NOPE that this user can read\. /)
  }
  expect(await tallygate(['logs', '--unit', 'NOPE', '--socket', agent.address], { env })).toMatchObject({ code: 64 })
})

test('a file is read as it is named; what cannot be had says what to do', async () => {
  const readText = (path: string): string => {
    if (path === 'agent.log') return NDJSON
    throw new Error('no such file')
  }
  expect((await tallygate(['logs', '--file', 'agent.log', '--json'], { readText })).out).toBe(NDJSON)
  const missing = await tallygate(['logs', '--file', 'other.log'], { readText })
  expect(missing).toMatchObject({ code: 66, out: '' })
  const nobody = await tallygate(['logs'], { env: { ...NO_JOURNAL, TALLYGATE_AGENT_SOCKET_PATH: '/nowhere/a.sock' } })
  expect(nobody).toMatchObject({ code: 66, out: '' })
  expect(nobody.err).toMatch(
    /^tallygate: LOG_UNREADABLE: .*no agent responds.* Start the agent, or name a file .*\(--file\)\. /,
  )
  expect(await tallygate(['logs', '--level', 'loud'])).toMatchObject({ code: 64 })
})

test('an agent remembers its last lines, within bounds', () => {
  const ring = new LogBuffer()
  for (let n = 0; n < 10_000; n += 1) ring.add(`{"n":${n}}\n`)
  const few = ring.text().split('\n')
  expect(few).toHaveLength(2_001)
  expect(few.at(-2)).toBe('{"n":9999}')
  for (let n = 0; n < 100; n += 1) ring.add(`${'x'.repeat(100_000)}\n`)
  expect(ring.text().length).toBeLessThanOrEqual(1_000_000)
  expect(ring.text()).not.toBe('')
})

test('an instant in a line is readable', () => {
  const line =
    '{"level":30,"time":1800000000000,"since":1799999990000,"code":"CLOUD_UNREACHABLE","msg":"a problem has ended"}'
  expect(readable(line)).toBe(
    '2027-01-15T08:00:00.000Z INFO  a problem has ended since=2027-01-15T07:59:50.000Z code=CLOUD_UNREACHABLE',
  )
})
