// The nouns of the command line, against a real cloud.
import { randomUUID } from 'node:crypto'
import { readFileSync } from 'node:fs'
import { afterEach, beforeEach, describe, expect, it, test } from 'vitest'
import { NOUNS } from '../../src/cli/nouns/nouns.ts'
import { newDeviceKeys } from '../cloud/sync/test-device.ts'
import { START, type Twin, newKeyPair, openTwin } from '../cloud/harness.ts'
import { type Ran, administering, tallygate } from './outside.ts'

let [twin, files]: [Twin, Record<string, string>] = [undefined as never, {}]
beforeEach(async () => {
  twin = await openTwin()
  files = {}
})
afterEach(() => twin[Symbol.asyncDispose]())

const run = (...args: readonly string[]): Promise<Ran> =>
  tallygate(
    args,
    administering(twin, (path) => files[path]),
  )

/** The cells of each line of a table, without its head. */
async function table(...args: readonly string[]): Promise<readonly (readonly string[])[]> {
  const { out } = await run(...args)
  const [, ...lines] = out.trimEnd().split('\n')
  return lines.map((line) => line.split(/ {2,}/))
}

describe('set', () => {
  it('creates and changes an object, and does nothing if there is no difference', async () => {
    expect((await run('instances', 'set', 'Workshop', '--account', 'me')).out).toBe('instance Workshop: created\n')
    const set = ['line-items', 'set', 'FIRST', '--quantity']
    expect((await run(...set, '1000')).out).toBe('line item FIRST: created\n')
    expect((await run(...set, '1000')).out).toBe('line item FIRST: unchanged\n')
    expect((await run(...set, '2000', '--reset', 'MONTHLY')).out).toBe('line item FIRST: changed\n')
    // What the options do not name stays.
    expect((await run(...set, '3000')).out).toBe('line item FIRST: changed\n')
    expect(await table('line-items', 'list')).toEqual([['FIRST', 'DEPLOYED', '3,000', '0', 'MONTHLY']])
    const actions = (await table('audit', 'list', '--limit', '4')).map(([, , change]) => change)
    expect(actions).toEqual(['map line item', 'map line item', 'map line item', 'create instance'])
  })

  it('refuses to change what the service cannot change, and names the difference', async () => {
    await run('rate-tables', 'set', '1', '--rate', 'Print=1', '--rate', 'LaserCut@1.0=0.85')
    twin.now += 1_000
    expect((await run('rate-tables', 'set', '1', '--rate', 'Print=1', '--rate', 'LaserCut@1.0=0.85')).out).toBe(
      'rate table 1: unchanged\n',
    )
    const { code, err } = await run('rate-tables', 'set', '1', '--rate', 'Print=2')
    expect(code).toBe(1)
    expect(err).toMatch(/CONFLICT: The rate table 1 exists and cannot be changed \(items: .*Use another version\./)
    const at = new Date(START).toISOString()
    expect(await table('rate-tables', 'list')).toEqual([
      ['', '1', at, 'Print', '1'],
      ['', 'LaserCut', '1.0', '0.85'],
    ])
  })

  it('warns of items that a new rate table does not rate', async () => {
    await run('rate-tables', 'set', '1', '--rate', 'Print=1', '--rate', 'LaserCut@1.0=0.85')
    twin.now += 1_000
    const { code, out, err } = await run('rate-tables', 'set', '2', '--rate', 'Print=1', '--rate', 'Engrave=2')
    expect([code, out]).toEqual([0, 'rate table 2: created\n'])
    expect(err).toBe(
      'warning: version 2 replaces version 1, but does not rate LaserCut 1.0: when it takes effect, requests for these items are refused. To allow them, set another version with all items.\n',
    )
    const all = ['--rate', 'Print=1', '--rate', 'LaserCut@1.0=1', '--rate', 'Engrave=2']
    expect(await run('rate-tables', 'set', '3', ...all)).toMatchObject({ code: 0, err: '' })
    expect(await run('rate-tables', 'set', '1', '--series', 'other', '--rate', 'Scan=1')).toMatchObject({ err: '' })
  })

  it('warns of items that a rate table does not rate and an earlier one of the file does', async () => {
    const tables = [['Print', 'Scan'], ['Print']].map((names, at) => ({
      version: `${at + 1}`,
      effectiveFrom: START + at,
      items: names.map((name) => ({ name, rate: 1 })),
    }))
    files['/tables.json'] = JSON.stringify(tables)
    const { code, err } = await run('rate-tables', 'set', '-f', '/tables.json')
    expect(code).toBe(0)
    expect(err).toMatch(/^warning: version 2 replaces version 1, but does not rate Scan: /)
  })

  it('reads rules from YAML with conditions by name, and keeps the use of actions that stay', async () => {
    await twin.shop({ quantity: 1_000 })
    const set = ['conditions', 'set', 'design', '--property', 'department', '--values', 'cad, design']
    expect((await run(...set)).out).toBe('condition design: created\n')
    expect((await run(...set)).out).toBe('condition design: unchanged\n')
    files['/rules.yaml'] = 'lineItemId: ACT-1\nactions:\n  - {condition: design, action: ALLOW, allocation: 100}\n'
    expect((await run('rules', 'set', '-f', '/rules.yaml')).out).toBe('list of actions ACT-1: created\n')
    const [instance] = await table('instances', 'list')
    await twin.call('POST', `/elastic/api/v1.1/instances/${instance!.at(-1)}/access-request`, {
      body: {
        requester: { type: 'user', value: 'anna', dictionary: { department: 'design' } },
        requestedItems: [{ item: 'Print', count: 30.5 }],
      },
    })
    files['/rules.yaml'] += '  - {action: DENY}\n'
    expect((await run('rules', 'set', '-f', '/rules.yaml')).out).toBe('list of actions ACT-1: changed\n')
    expect((await run('rules', 'set', '-f', '/rules.yaml')).out).toBe('list of actions ACT-1: unchanged\n')
    expect(await table('rules', 'list')).toEqual([
      ['ACT-1', 'ALLOW', 'design', '100', '30.5'],
      ['ACT-1', 'DENY'],
    ])
    const [usage] = await table('usage', 'list')
    expect(usage).toEqual([
      new Date(twin.now).toISOString(),
      'Print',
      '30.5',
      '30.5',
      'GRANTED',
      'anna',
      'ACT-1',
      'Test',
      'REQUEST',
      expect.stringMatching(/^[\da-f-]{36}$/),
    ])
  })

  it('sets the next reset of a limit as the console does, and keeps a file valid after its time', async () => {
    await twin.shop()
    const set = (...flags: readonly string[]) => run('limits', 'set', 'ACT-1', ...flags)
    const limit = async () => (await table('limits', 'list'))[0]?.slice(1)
    await set('--limit', '10', '--frequency', 'DAILY')
    expect(await limit()).toEqual(['10', 'DAILY', '2026-05-07T00:00:00.000Z'])
    await set('--next-reset', '2026-05-07T06:00Z')
    expect(await limit()).toEqual(['10', 'DAILY', '2026-05-07T06:00:00.000Z'])
    await set('--limit', '20')
    expect(await limit()).toEqual(['20', 'DAILY', '2026-05-07T06:00:00.000Z'])
    await set('--frequency', 'MONTHLY')
    expect(await limit()).toEqual(['20', 'MONTHLY', '2026-06-01T00:00:00.000Z'])
    for (const past of ['2026-05-06', String(twin.now)]) {
      const { code, err } = await set('--next-reset', past)
      expect([code, err]).toEqual([64, expect.stringContaining(`'${past}' is invalid. Use a time in the future.`)])
    }
    files['/limits.yaml'] = 'lineItemId: ACT-1\nlimit: 20\nfrequency: MONTHLY\nnextReset: 2026-05-20\n'
    const ofFile = async () => (await run('limits', 'set', '-f', '/limits.yaml')).out
    expect(await ofFile()).toBe('consumption limit ACT-1: changed\n')
    expect(await limit()).toEqual(['20', 'MONTHLY', '2026-05-20T00:00:00.000Z'])
    twin.now += 30 * 86_400_000
    expect(await ofFile()).toBe('consumption limit ACT-1: unchanged\n')
    expect(await limit()).toEqual(['20', 'MONTHLY', '2026-06-20T00:00:00.000Z'])
  })

  it('refuses numbers in a file that JSON would round, with their lines', async () => {
    await twin.shop()
    files['/limits.yaml'] = 'lineItemId: ACT-1\nfrequency: DAILY\nlimit: 12345678901.234567\n'
    const { code, err } = await run('limits', 'set', '-f', '/limits.yaml')
    expect([code, err]).toEqual([
      65,
      expect.stringContaining(
        '/limits.yaml:3: 12345678901.234567 has too many digits. The nearest number is 12345678901.234568',
      ),
    ])
    files['/rates.yaml'] = 'version: "1"\nitems:\n  - name: Print\n    rate: 9007199254740993\n'
    expect((await run('rate-tables', 'set', '-f', '/rates.yaml')).err).toContain(
      '/rates.yaml:4: 9007199254740993 has too many digits. The nearest number is 9007199254740992',
    )
    for (const [limit, problem] of [
      ['+12345678901.234567', 'has too many digits. The nearest number is 12345678901.234568'],
      ['.12345678901234567891', 'has too many digits. The nearest number is 0.12345678901234568'],
      [`0.${'123456789'.repeat(10)}`, 'is no decimal in the supported range'],
    ] as const) {
      files['/limits.yaml'] = `lineItemId: ACT-1\nfrequency: DAILY\nlimit: ${limit}\n`
      expect((await run('limits', 'set', '-f', '/limits.yaml')).err).toContain(`/limits.yaml:3: ${limit} ${problem}`)
    }
    for (const [limit, outcome] of [
      ['1234567.000001', 'created'],
      ['+.5', 'changed'],
    ] as const) {
      files['/limits.yaml'] = `lineItemId: ACT-1\nfrequency: DAILY\nlimit: ${limit}\n`
      expect((await run('limits', 'set', '-f', '/limits.yaml')).out).toBe(`consumption limit ACT-1: ${outcome}\n`)
    }
  })

  it('takes JSON from standard input', async () => {
    await twin.shop()
    files['/dev/stdin'] = '[{"lineItemId": "ACT-1", "limit": 10, "frequency": "DAILY"}]'
    expect((await run('limits', 'set', '-f', '-')).out).toBe('consumption limit ACT-1: created\n')
    const next = new Date(Date.UTC(2026, 4, 7)).toISOString()
    expect(await table('limits', 'list')).toEqual([['ACT-1', '10', 'DAILY', next]])
    twin.now += 2 * 86_400_000
    expect((await run('limits', 'set', '-f', '-')).out).toBe('consumption limit ACT-1: unchanged\n')
    expect((await run('limits', 'delete', 'ACT-1', '--yes')).out).toBe('consumption limit ACT-1: deleted\n')
    expect((await run('limits', 'list')).out).toBe('No limits.\n')
  })
})

it('prints amounts exactly with --json, and rounded in tables', async () => {
  await twin.shop({ quantity: 9_000_000_000_000 })
  const request = { requester: { type: 'user', value: 'anna' }, requestedItems: [{ item: 'Print', count: 1 }] }
  const instances = JSON.parse((await run('instances', 'list', '--json')).out) as { id: string }
  const count = 8_123_456_789_012
  const body = { ...request, requestedItems: [{ item: 'Print', count }] }
  await twin.call('POST', `/elastic/api/v1.1/instances/${instances.id}/access-request`, { body })
  const small = { ...request, requestedItems: [{ item: 'Print', count: 0.123456 }] }
  await twin.call('POST', `/elastic/api/v1.1/instances/${instances.id}/access-request`, { body: small })
  expect((await run('line-items', 'show', 'ACT-1', '--json')).out).toContain('"used":8123456789012.123456')
  const [row] = await table('line-items', 'list')
  expect(row![3]).toBe('8,123,456,789,012.1')
})

it('shows one object with its times as dates', async () => {
  await twin.rates({ Print: 1 })
  expect((await run('rate-tables', 'show', '1')).out).toMatch(/^effectiveFrom +2026-\d\d-\d\dT[\d:.]+Z$/m)
})

describe('names', () => {
  it('select the instance of usage, events, keys and recoveries', async () => {
    await run('instances', 'set', 'Workshop', '--account', 'me')
    await run('instances', 'set', 'Lab', '--account', 'me')
    files['k.pem'] = newKeyPair().publicPem
    expect(await run('keys', 'set', 'k.pem', '--client', '--instance', 'Lab')).toMatchObject({ code: 0, err: '' })
    expect((await run('keys', 'list')).out).toMatch(/client-key +Lab /)
    expect((await run('audit', 'list', '--instance', 'Lab')).out).toContain('instance Lab')
    expect((await run('recovery', 'show', 'Lab')).code).toBe(0)
    expect((await run('usage', 'export', '--instance', 'Lab')).code).toBe(0)
    expect((await run('usage', 'export', '--instance', 'Lba')).err).toContain(
      'Did you mean Lab? tallygate instances list shows those that exist.\n',
    )
    expect((await run('line-items', 'show', 'X', '--instance', 'Lab')).err).toBe(
      'tallygate: NOT_FOUND: There is no line item X. tallygate line-items list shows those that exist.\n',
    )
  })

  it('select a device, preferably one that is not revoked', async () => {
    const instanceId = await twin.shop()
    const enrolled = async () => {
      const { jwk } = await newDeviceKeys()
      const body = { publicKey: jwk, name: 'press-7' }
      const { body: device } = await twin.call('POST', '/edge/api/v1/enrollments', {
        token: await twin.enrollmentToken(instanceId),
        body,
      })
      return (device as { deviceId: string }).deviceId
    }
    const first = await enrolled()
    expect((await run('devices', 'revoke', 'press-7', '--yes')).out).toContain(first)
    expect((await run('audit', 'list', '--device', 'press-7')).out).toContain('revoke device')
    const second = await enrolled()
    expect((await run('devices', 'show', 'press-7')).out).toContain(second)
  })

  it('select an instance, which is needed only if there are several', async () => {
    await run('instances', 'set', 'Workshop', '--account', 'me')
    await run('instances', 'set', 'Lab', '--account', 'me')
    const several = await run('line-items', 'list')
    expect(several.code).toBe(64)
    expect(several.err).toContain('The cloud has several instances (Workshop, Lab). Name one with --instance.')
    expect((await run('line-items', 'list', '--instance', 'Lab')).out).toBe('No line items.\n')
    expect((await run('line-items', 'list', '--instance', 'Lba')).err).toContain('Did you mean Lab?')
    const [, lab] = await table('instances', 'list')
    expect((await run('line-items', 'list', '--instance', lab!.at(-1)!)).code).toBe(0)
  })

  it('of an instance and its devices are known to a key that is limited to it', async () => {
    await run('instances', 'set', 'Lab', '--account', 'me')
    await run('instances', 'set', 'Other', '--account', 'me')
    const token = (await run('devices', 'enrollment-token', '--instance', 'Lab')).out.trim()
    const body = { publicKey: (await newDeviceKeys()).jwk, name: 'press-7' }
    expect((await twin.call('POST', '/edge/api/v1/enrollments', { token, body })).status).toBe(200)
    const { privatePem, publicPem } = newKeyPair()
    files['ada.pem'] = privatePem
    files['ada.pub'] = publicPem
    await run('keys', 'set', 'ada.pub', '--name', 'Ada', '--role', 'rules', '--role', 'read', '--instance', 'Lab')
    const ada = (...args: readonly string[]) => run(...args, '--admin-key', 'ada.pem')
    expect((await ada('instances', 'list')).out).toMatch(/\nLab .*\n$/)
    expect(await ada('line-items', 'set', 'A', '--quantity', '5')).toMatchObject({ code: 0, err: '' })
    expect((await ada('line-items', 'list', '--instance', 'Lab')).out).toMatch(/\nA /)
    expect((await ada('line-items', 'list', '--instance', 'Other')).err).toContain('There is no instance Other.')
    expect((await ada('usage', 'list')).err).toContain('with --instance in a command')
    expect((await ada('devices', 'show', 'press-7')).out).toMatch(/name +press-7\n/)
  })

  it('that do not exist are answered with a close one', async () => {
    await twin.shop()
    expect((await run('line-items', 'show', 'ACT-2')).err).toContain(
      'NOT_FOUND: There is no line item ACT-2. Did you mean ACT-1?',
    )
    expect((await run('devices', 'lock', 'press-7')).err).toContain('NOT_FOUND: There is no device press-7.')
  })
})

it('deletes an object, and passes on why the service refuses', async () => {
  await twin.shop()
  expect((await run('line-items', 'delete', 'ACT-1', '--yes')).err).toContain('can be deleted when it is OBSOLETE')
  await run('line-items', 'set', 'ACT-1', '--state', 'OBSOLETE')
  expect((await run('line-items', 'delete', 'ACT-1', '--yes')).out).toBe('line item ACT-1: deleted\n')
  expect((await run('line-items', 'list')).out).toBe('No line items.\n')
})

it('deletes nothing in a script without --yes', async () => {
  await twin.shop()
  await run('line-items', 'set', 'ACT-1', '--state', 'OBSOLETE')
  expect(await run('line-items', 'delete', 'ACT-1')).toMatchObject({
    code: 64,
    err: expect.stringMatching(
      /^tallygate: USAGE: The line item ACT-1 will be deleted, .* Repeat with --yes to run delete\./,
    ) as string,
  })
  expect((await run('line-items', 'list')).out).toContain('ACT-1')
})

it('says that a change without options changes nothing', async () => {
  await twin.shop()
  const { code, out, err } = await run('line-items', 'set', 'ACT-1')
  expect([code, out]).toEqual([0, 'line item ACT-1: unchanged\n'])
  expect(err).toMatch(/^Nothing was changed: give at least one option that changes it \(--quantity, .*\)\.\n$/)
  expect((await run('line-items', 'set', 'ACT-1', '--quantity', '7')).err).toBe('')
})

it('says that rules are changed with a file', async () => {
  await twin.shop()
  files['rules.json'] = JSON.stringify({ lineItemId: 'ACT-1', actions: [{ action: 'ALLOW' }] })
  await run('rules', 'set', '-f', 'rules.json')
  const { err } = await run('rules', 'set', 'ACT-1')
  expect(err).toBe('Nothing was changed: give at least one option that changes it (--file).\n')
})

it('says what to do about a refused change, in the message only', async () => {
  await twin.shop()
  await run('rate-tables', 'set', '2', '--rate', 'Photo@1.0=1')
  expect(
    await Promise.all(
      [
        ['line-items', 'delete', 'ACT-1', '--yes'],
        ['rate-tables', 'delete', '2', '--yes'],
        ['instances', 'set', 'Test', '--account', 'other'],
        ['sweeps', 'confirm', 'clock'],
      ].map(async (args) => (await run(...args)).err),
    ),
  ).toEqual(
    [
      'A line item can be deleted when it is OBSOLETE; this one is DEPLOYED. Set this state first; it is final.',
      'The rate table 2 is in effect already, so it stays. To replace it, create another version.',
      'The instance Test exists and cannot be changed (accountId: customer → other). Use another name.',
      'The clock of this node is trusted: there is nothing to confirm.',
    ].map((text) => `tallygate: CONFLICT: ${text}\n`),
  )
})

describe('the service lacks what a command names:', () => {
  const nowhere = '00000000-0000-4000-8000-000000000000'
  it.each([
    ['a line item', ['limits', 'set', 'X', '--limit', '1', '--frequency', 'DAILY'], 'line-items list'],
    ['the line item of actions', ['rules', 'set', 'X', '-f', '/x.yaml'], 'line-items list'],
    ['an instance', ['line-items', 'list', '--instance', nowhere], 'instances list'],
    ['a device', ['devices', 'show', nowhere], 'devices list'],
    ['devices with a label', ['devices', 'lock', '--label', 'site=bonn', '--yes'], 'devices list'],
    ['a session', ['sessions', 'lock', nowhere], 'sessions list'],
    ['a sink', ['events', 'replay', 'x', '--dead-letters'], 'events sinks'],
    ['an event', ['events', 'show', 'X'], 'events list'],
  ])('%s', async (_what, args, list) => {
    await twin.shop()
    files['/x.yaml'] = 'actions: []\n'
    const { err } = await run(...args)
    expect(err).toMatch(new RegExp(`^tallygate: NOT_FOUND: .*\\. tallygate ${list} shows those that exist\\.\n$`))
  })
})

it('ends a session of the cloud', async () => {
  const instanceId = await twin.shop()
  const { body } = await twin.call('POST', '/api/v1.1/sessions', { body: { instanceId } })
  const id = (body as { sessionId: string }).sessionId
  expect(await table('sessions', 'list')).toEqual([[id, 'IDLE', 'Test', 'never', 'never']])
  expect((await run('sessions', 'show', 'nope')).err).toContain('USAGE: nope is not the id of a session')
  expect((await run('sessions', 'delete', id, '--yes')).out).toBe(`session ${id}: deleted\n`)
  expect((await run('sessions', 'show', id)).out).toMatch(/state +TERMINATED/)
})

describe('a file that is invalid names the line and changes nothing:', () => {
  test.each([
    ['YAML', 'a: [', /FILE_INVALID: \/x\.yaml:1: /],
    [
      'a field that does not exist',
      'activationId: A\nquantity: 1\nquanttiy: 2\n',
      /\/x\.yaml:3: quanttiy: there is no such field\. Did you mean quantity\?/,
    ],
    [
      'text without quotes',
      '- activationId: A\n- activationId: 1.0\n',
      /\/x\.yaml:2: \[1\]\.activationId: must be text: write it in quotes/,
    ],
    ['a number that is none', 'activationId: A\nquantity: many\n', /\/x\.yaml:2: quantity: /],
    ['a day that does not exist', 'activationId: A\nstart: 2026-02-30\n', /\/x\.yaml:2: start: Use 2026-05-01/],
    ['no name', 'quantity: 1\n', /\/x\.yaml:1: activationId: is missing/],
    ['no object', '- 5\n', /\/x\.yaml:1: \[0\]: must be an object/],
    ['no content', '\n', /FILE_INVALID: \/x\.yaml is empty/],
    ['a second document', 'a: 1\n---\nb: 2\n', /\/x\.yaml:2: a second document begins: put each document into its own/],
    [
      'too many levels',
      `a: ${'['.repeat(20_000)}${']'.repeat(20_000)}`,
      /FILE_INVALID: \/x\.yaml:1: it is nested too deeply\. /,
    ],
    ['many levels', `a: ${'['.repeat(70)}${']'.repeat(70)}`, /\/x\.yaml is nested too deeply\. /],
    ['too many characters', `a: "${'x'.repeat(8 * 1024 * 1024)}"`, /\/x\.yaml is larger than 8 MiB: split it/],
  ])('%s', async (_what, text, message) => {
    await twin.shop()
    files['/x.yaml'] = text
    const { code, err } = await run('line-items', 'set', '-f', '/x.yaml')
    expect(err).toMatch(message)
    expect(code).toBe(65)
    expect(await table('line-items', 'list')).toHaveLength(1)
  })

  test('a cell of a cloud without cells is BAD_REQUEST', async () => {
    const { code, out, err } = await run('line-items', 'list', '--cell', 'north')
    expect([code, out, err]).toEqual([1, '', expect.stringContaining('This cloud has no cells.') as string])
  })

  test('a name that does not exist is USAGE', async () => {
    const without = await run('configuration', 'set', 'timezone.tolerant')
    expect(without).toMatchObject({
      code: 64,
      out: '',
      err: expect.stringContaining('USAGE: --value: is missing. See ') as string,
    })
    const { err } = await run('configuration', 'set', 'nope', '--value', '1')
    expect(err).toContain(
      'USAGE: unknown configuration value "nope". Known: timezone.tolerant, session.charge.period. See ',
    )
  })

  test('a file that does not exist, and a missing value, are USAGE', async () => {
    await twin.shop()
    expect((await run('line-items', 'set', '-f', '/no.yaml')).err).toContain(
      'USAGE: Cannot read /no.yaml: there is no such file.',
    )
    expect((await run('line-items', 'set', 'NEW')).err).toContain('USAGE: --quantity: is missing')
    expect((await run('line-items', 'set', 'NEW', '--quantity', '5', '--overdraft', '5')).err).toContain(
      'USAGE: --overdraft-type: is missing',
    )
    files['/item.yaml'] = 'activationId: NEW\nquantity: 5\nattributes:\n  overdraftType: Number\n'
    expect((await run('line-items', 'set', '-f', '/item.yaml')).err).toContain(
      '/item.yaml:3: attributes.overdraftLimit: is missing',
    )
    expect((await run('line-items', 'set')).err).toContain('Give the name, or a file with -f.')
  })
})

test.each(NOUNS.flatMap(({ examples }) => examples))('the example `%s` is understood', async (example) => {
  files['rules.yaml'] = '{ lineItemId: FIRST-1000, actions: [{ action: ALLOW }] }'
  files['ada.pem'] = newKeyPair().privatePem
  const words = example.replace('"$session"', randomUUID()).split(' ')
  const { code, err } = await run(...words.slice(1), '--url', 'http://127.0.0.1:1')
  expect({ code, err }).toMatchObject({ code: 69, err: expect.stringContaining('SERVICE_UNREACHABLE') as string })
})

describe('an error', () => {
  it('of a wrong key, or of a cloud that is away, advises administrators', async () => {
    files['/wrong.pem'] = readFileSync(new URL('../cloud/harness.ts', import.meta.url), 'utf8')
    expect((await run('instances', 'list', '--admin-key', '/wrong.pem')).err).toMatch(
      /^tallygate: KEY_UNUSABLE: \/wrong\.pem has no PEM private key/,
    )
    const { code, err } = await run('instances', 'list', '--url', 'http://127.0.0.1:1')
    expect(code).toBe(69)
    expect(err).toMatch(/^tallygate: SERVICE_UNREACHABLE: /)
    expect(err).not.toContain('device')
  })

  it('of a wrong noun or verb names a close one', async () => {
    expect((await run('line-item', 'list')).err).toContain("unknown command 'line-item' (Did you mean line-items?)")
    expect((await run('line-items', 'lsit')).err).toContain('Did you mean list?')
  })
})
