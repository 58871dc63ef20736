import { describe, expect, it } from 'vitest'
import { z } from 'zod'
import { CodedError } from '../../src/protocol/errors.ts'
import {
  type OptionTable,
  type OptionTree,
  type Settings,
  Secret,
  duration,
  path,
  secret,
  structure,
  text,
} from '../../src/settings/option.ts'
import { LiveSettings } from '../../src/settings/reload.ts'

const table = {
  envPrefix: 'TALLYGATE_AGENT',
  options: {
    path: text({ default: '/a', help: 'A place.' }),
    sync: {
      interval: duration({ reloadable: true, default: '5m', min: '1s', max: '1d', help: 'A time.' }),
      fixed: duration({ default: '5m', min: '1s', max: '1d', help: 'Another time.' }),
    },
    token: secret({ reloadable: true, help: 'A secret.' }),
    file: path({ reloadable: 'between values', default: null, help: 'A file.' }),
  },
} satisfies OptionTable<OptionTree>

type Some = Settings<typeof table.options>

const FIRST: Some = {
  path: '/a',
  sync: { interval: 300_000, fixed: 300_000 },
  token: new Secret('one', 'a test'),
  file: '/one',
}

function service(prepare: (fresh: Some) => () => void = () => () => undefined) {
  const clock = { now: 1_000 }
  const lines: string[] = []
  const say = (level: string) => (fields: Record<string, unknown>, message: string) =>
    void lines.push(`${level} ${message} ${JSON.stringify(fields)}`)
  const log = { info: say('info'), warn: say('warn'), error: say('error') }
  const live = new LiveSettings({ table, settings: FIRST, prepare, log, now: () => clock.now })
  return { live, clock, lines, log }
}

describe('a reload', () => {
  it('changes what may change, for later readers', () => {
    const { live, lines } = service()
    const { sync } = live.view
    live.reload(() => ({ ...FIRST, sync: { interval: 60_000, fixed: 300_000 }, token: new Secret('two', 'a test') }))
    expect(sync.interval).toBe(60_000)
    expect(live.view.token?.reveal()).toBe('two')
    expect(live.notice).toBeNull()
    expect(lines).toEqual(['info settings reloaded {"changed":["sync.interval","token_file"],"needRestart":[]}'])
  })

  it('names settings whose files only a start reads and have other contents, until they are as they were', () => {
    const { clock, lines, log } = service()
    const contents = { now: 'one' }
    const startFiles = () => {
      if (contents.now === '') throw new CodedError('CONFIG_UNREADABLE', '/hook: there is no such file.')
      return { path: contents.now }
    }
    const live = new LiveSettings({
      ...{ table, settings: FIRST, prepare: () => () => undefined, startFiles, log, now: () => clock.now },
    })
    for (const text of ['two', '', 'two', 'one']) {
      contents.now = text
      live.reload(() => FIRST)
    }
    expect(lines.map((line) => line.replace(/.*"(needRestart|cause)":/, ''))).toEqual([
      '["path"]}',
      '"CONFIG_UNREADABLE","reason":"/hook: there is no such file."}',
      '["path"]}',
      '[]}',
    ])
    expect(live.notice).toBeNull()
  })

  it('names what waits for a restart, until it is as it was', () => {
    const { live, clock } = service()
    live.reload(() => ({ ...FIRST, path: '/b', sync: { interval: 60_000, fixed: 1_000 } }))
    expect(live.view).toMatchObject({ path: '/a', sync: { interval: 60_000, fixed: 300_000 } })
    const message = 'These settings changed but need a restart: path, sync.fixed.'
    expect(live.notice).toEqual({ code: 'CONFIG_NEEDS_RESTART', message, since: 1_000 })
    clock.now = 2_000
    live.reload(() => ({ ...FIRST, path: '/c' }))
    expect(live.notice).toMatchObject({ message: 'These settings changed but need a restart: path.', since: 1_000 })
    live.reload(() => FIRST)
    expect(live.notice).toBeNull()
  })

  it('takes another value over where only whether there is one waits for a restart', () => {
    const prepared: Some[] = []
    const { live } = service((next) => {
      prepared.push(next)
      return () => undefined
    })
    live.reload(() => ({ ...FIRST, file: '/two' }))
    expect([live.view.file, live.notice]).toEqual(['/two', null])
    live.reload(() => ({ ...FIRST, path: '/b', file: null }))
    expect(live.view.file).toBe('/two')
    expect(live.notice?.message).toBe('These settings changed but need a restart: path, file.')
    // What the service is to check is what will be in force.
    expect(prepared.map(({ path, file }) => [path, file])).toEqual([
      ['/a', '/two'],
      ['/a', '/two'],
    ])
  })

  it('changes nothing when a source cannot be read, and reports it until a reload succeeds', () => {
    const { live, lines } = service()
    live.reload(() => {
      throw new CodedError('CONFIG_INVALID', 'agent.toml: unknown key slync.')
    })
    expect(live.view.sync.interval).toBe(300_000)
    expect(live.notice).toMatchObject({ code: 'CONFIG_NOT_RELOADED' })
    expect(live.notice?.message).toContain('agent.toml: unknown key slync.')
    expect(lines).toEqual([expect.stringMatching(/^error .*"code":"CONFIG_NOT_RELOADED","cause":"CONFIG_INVALID"/)])
    live.reload(() => FIRST)
    expect(live.notice).toBeNull()
  })

  it('changes nothing when only the service finds a problem', () => {
    let applied = 0
    const { live } = service(({ sync }) => {
      if (sync.interval === 1_000) throw new CodedError('CONFIG_INVALID', 'too fast for this one')
      return () => void (applied += 1)
    })
    live.reload(() => ({ ...FIRST, sync: { interval: 1_000, fixed: 300_000 } }))
    expect(live.view.sync.interval).toBe(300_000)
    expect(applied).toBe(0)
    live.reload(() => ({ ...FIRST, sync: { interval: 2_000, fixed: 300_000 } }))
    expect([live.view.sync.interval, applied]).toEqual([2_000, 1])
  })

  it('does not hide a fault of the program', () => {
    const { live } = service()
    expect(() => live.reload(() => JSON.parse('{') as Some)).toThrow(SyntaxError)
  })
})

it('tells a changed structure from an equal one, and keeps its form', () => {
  const rules = structure(z.array(z.object({ a: z.int() })), { reloadable: true, help: '', takes: 'a list' })
  const options = { rules, other: text({ reloadable: true, default: 'x', help: '' }) }
  const lines: string[] = []
  const log = {
    info: (fields: object) => void lines.push(JSON.stringify(fields)),
    warn: () => undefined,
    error: () => undefined,
  }
  const live = new LiveSettings({
    table: { envPrefix: 'X', options },
    settings: { rules: [{ a: 1 }], other: 'x' },
    prepare: () => () => undefined,
    log,
    now: () => 0,
  })
  live.reload(() => ({ rules: [{ a: 1 }], other: 'y' }))
  expect(lines).toEqual(['{"changed":["other"],"needRestart":[]}'])
  expect(live.view.rules).toEqual([{ a: 1 }])
  live.reload(() => ({ rules: [{ a: 2 }], other: 'y' }))
  expect(live.view.rules).toEqual([{ a: 2 }])
})
