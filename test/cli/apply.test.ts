// `tallygate apply`: a file against a real cloud.
import { afterEach, beforeEach, describe, expect, it, test } from 'vitest'
import { type Twin, openTwin } from '../cloud/harness.ts'
import { type Ran, administering, tallygate } from './outside.ts'

let [twin, site]: [Twin, string] = [undefined as never, '']
beforeEach(async () => {
  twin = await openTwin()
  site = SITE
})
afterEach(() => twin[Symbol.asyncDispose]())

const world = () => administering(twin, (path) => (path === 'site.yaml' ? site : undefined))
const run = (...args: readonly string[]): Promise<Ran> => tallygate(args, world())
const apply = (...flags: readonly string[]): Promise<Ran> => run('apply', '-f', 'site.yaml', ...flags)

const SITE = `configuration:
  timezone.tolerant: true
rateTables:
  - version: '1'
    effectiveFrom: 2026-01-01
    items:
      - { name: LaserCut, version: '1.0', rate: 0.85 }
      - { name: Print, rate: 1 }
instances:
  - shortName: Workshop
    accountId: me
    conditions:
      - { name: design, operator: IN, property: department, values: [design, cad] }
      - name: staff
        operator: NOT
        condition: { operator: IN, property: role, values: [guest] }
    lineItems:
      - activationId: FIRST-1000
        quantity: 1000
        attributes: { resetFrequency: MONTHLY }
        actions:
          - { condition: design, action: ALLOW, allocation: 500.25 }
          - { condition: staff, action: DENY }
          - { action: ALLOW }
        limit: { limit: 100, frequency: DAILY }
      - activationId: SECOND
        quantity: 5
`

/** The fields of a condition with so many levels. */
function deep(levels: number): string {
  const innermost = '{ operator: IN, property: role, values: [guest] }'
  const inner = Array.from({ length: levels - 2 }).reduce<string>(
    (condition) => `{ operator: NOT, condition: ${condition} }`,
    innermost,
  )
  return `        operator: NOT\n        condition: ${inner}`
}

it('creates everything that the file names, in one run, and nothing in the next', async () => {
  const first = await apply()
  expect(first).toMatchObject({ code: 0, err: '' })
  expect(first.out).toContain('+ rate table 1\n')
  expect(first.out).toContain('\n    series: none\n    effectiveFrom: 2026-01-01T00:00:00.000Z\n')
  expect(first.out).toContain('+ line item FIRST-1000 of Workshop\n    state: DEPLOYED\n    start: any\n    end: any\n')
  expect(first.out).toMatch(/\n8 created, 1 changed, 0 unchanged\.\n$/)
  for (const flags of [['--dry-run'], []]) {
    twin.now += 86_400_000
    expect(await apply(...flags)).toEqual({
      code: 0,
      out: 'No changes: 0 created, 0 changed, 9 unchanged.\n',
      err: '',
    })
  }
  const rules = (await run('rules', 'list')).out.split('\n').map((line) => line.split(/ {2,}/))
  expect(rules.slice(1, 4)).toEqual([
    ['FIRST-1000', 'ALLOW', 'design', '500.25', '0'],
    ['FIRST-1000', 'DENY', 'staff'],
    ['FIRST-1000', 'ALLOW'],
  ])
})

it.each(['{}', '# to be written\n', '---\n', 'instances: []\n', 'rateTables:\ninstances:\n'])(
  'refuses a file that names nothing: %j',
  async (text) => {
    site = text
    const { code, out, err } = await apply()
    expect({ code, out }).toEqual({ code: 65, out: '' })
    expect(err).toContain('FILE_INVALID: site.yaml')
  },
)

it.each(['5', 'null', '[]'])('refuses a limit that is no object: %s', async (limit) => {
  site = `instances:\n  - shortName: Workshop\n    lineItems:\n      - { activationId: A, quantity: 1, limit: ${limit} }\n`
  const { code, out, err } = await apply()
  expect({ code, out }).toEqual({ code: 65, out: '' })
  expect(err).toContain('FILE_INVALID: site.yaml:4: instances[0].lineItems[0].limit: must be an object.')
})

it('names the first problems of a file, and how many others there are', async () => {
  const wrong = Array.from({ length: 13 }, (_, index) => `      - { activationId: L${index}, quantity: -1 }\n`)
  site = `instances:\n  - shortName: Workshop\n    lineItems:\n${wrong.join('')}`
  const { code, err } = await apply()
  expect(code).toBe(65)
  expect(err.match(/must be at least 0/g)).toHaveLength(10)
  expect(err).toContain('lineItems[9].quantity: must be at least 0; and 3 more problems.')
})

it('warns of items that a new rate table does not rate', async () => {
  expect((await apply()).err).toBe('')
  site = `rateTables:
  - version: '2'
    effectiveFrom: 2026-02-01
    items: [{ name: Print, rate: 1 }, { name: Scan, rate: 1 }]
  - version: '3'
    effectiveFrom: 2026-03-01
    items: [{ name: Print, rate: 1 }]
`
  const warnings = [
    'warning: version 2 replaces version 1, but does not rate LaserCut 1.0: ',
    'warning: version 3 replaces version 2, but does not rate Scan: ',
  ]
  for (const flags of [['--dry-run'], []]) {
    const { err } = await apply(...flags)
    for (const warning of warnings) expect(err).toContain(warning)
  }
})

it('creates each condition with one change of the rules', async () => {
  await apply()
  const set = ['conditions', 'set', 'sales', '--property', 'department', '--values', 'sales']
  expect(await run(...set)).toMatchObject({ code: 0, out: 'condition sales: created\n' })
  const audit = (await run('audit', 'list', '--json')).out
  expect(audit.match(/"\w+_CONDITIONS"/g)).toEqual(Array(3).fill('"CHANGE_CONDITIONS"'))
})

it('creates one instance when several run at the same time', async () => {
  site = 'instances: [{ shortName: Workshop, accountId: me, lineItems: [{ activationId: A, quantity: 5 }] }]'
  const runs = await Promise.all([apply(), apply(), run('instances', 'set', 'Workshop', '--account', 'me')])
  expect(runs.map(({ code, err }) => [code, err])).toEqual([
    [0, ''],
    [0, ''],
    [0, ''],
  ])
  expect((await run('instances', 'list', '--json')).out.trim().split('\n')).toHaveLength(1)
  expect(await apply()).toMatchObject({ code: 0, out: 'No changes: 0 created, 0 changed, 2 unchanged.\n' })
})

it('creates one condition of a name when several run at the same time', async () => {
  await run('instances', 'set', 'Workshop', '--account', 'me')
  const set = ['conditions', 'set', 'design', '--property', 'department', '--values', 'design,cad']
  site = SITE.slice(SITE.indexOf('instances:'))
  const runs = await Promise.all([apply(), apply(), run(...set)])
  expect(runs.map(({ code, err }) => [code, err])).toEqual([
    [0, ''],
    [0, ''],
    [0, ''],
  ])
  expect((await run('conditions', 'list', '--json')).out.trim().split('\n')).toHaveLength(2)
  expect(await apply()).toMatchObject({ code: 0, out: 'No changes: 0 created, 0 changed, 7 unchanged.\n' })
})

it('shows in a dry run what it would change, with exit code 2, and changes nothing', async () => {
  const dry = await apply('--dry-run')
  expect(dry).toMatchObject({ code: 2, err: '' })
  expect(dry.out).toContain('+ instance Workshop\n    shortName: Workshop\n    accountId: me\n')
  expect(dry.out).toMatch(/Dry run, nothing was changed\. It would be: 8 created, 1 changed, 0 unchanged\.\n$/)
  expect((await run('instances', 'list')).out).toBe('No instances.\n')
})

it('changes only what differs, and leaves what the file does not name', async () => {
  await apply()
  await run('line-items', 'set', 'OTHER', '--quantity', '7')
  site = SITE.replace('quantity: 1000', 'quantity: 2000').replace('values: [design, cad]', 'values: [design]')
  const { code, out } = await apply()
  expect(code).toBe(0)
  expect(out).toBe(
    [
      '~ condition design of Workshop',
      '    values: ["design","cad"] -> ["design"]',
      '~ line item FIRST-1000 of Workshop',
      '    quantity: 1000 -> 2000',
      '0 created, 2 changed, 7 unchanged.',
      '',
    ].join('\n'),
  )
  expect((await run('line-items', 'list')).out).toContain('OTHER')
})

it('keeps the use of actions that stay when the list changes', async () => {
  await apply()
  const { id } = JSON.parse((await run('instances', 'list', '--json')).out) as { id: string }
  await twin.call('POST', `/elastic/api/v1.1/instances/${id}/access-request`, {
    body: {
      requester: { type: 'user', value: 'anna', dictionary: { department: 'cad' } },
      requestedItems: [{ item: 'Print', count: 3 }],
    },
  })
  site = SITE.replace('          - { condition: staff, action: DENY }\n', '').replace('500.25', '600')
  await apply()
  const [, line] = (await run('rules', 'list')).out.split('\n')
  expect(line).toMatch(/ALLOW +design +600 +3$/)
})

it('prints differences as JSON', async () => {
  const lines = (await apply('--dry-run', '--json')).out.trimEnd().split('\n')
  expect(JSON.parse(lines[0]!)).toEqual({
    change: 'change',
    kind: 'configuration',
    name: 'timezone.tolerant',
    instance: null,
    differences: [{ path: 'value', before: 'false', after: 'true' }],
  })
  expect(lines).toHaveLength(9)
})

describe('a file with problems names each line and changes nothing:', () => {
  test.each([
    [
      'an unknown operator',
      'instances:\n  - shortName: A\n    accountId: B\n    conditions:\n      - { name: C, operator: ON }\n',
      /site\.yaml:5: instances\[0\]\.conditions\[0\]\.operator: must be one of AND, OR, NOT, IN/,
    ],
    [
      'an unknown section',
      'instance:\n  - shortName: A\n',
      /site\.yaml:1: instance: there is no such field\. Did you mean instances\?/,
    ],
    [
      'an unknown section of an instance',
      SITE.replace('    lineItems', '    lineItem'),
      /site\.yaml:17: instances\[0\]\.lineItem: there is no such field\. Did you mean lineItems\?/,
    ],
    [
      'an unknown section of a line item',
      SITE.replace('        limit', '        limits'),
      /instances\[0\]\.lineItems\[0\]\.limits: there is no such field\. Did you mean limit\?/,
    ],
    [
      'an unknown field of an action',
      SITE.replace('allocation: 500.25', 'alocation: 500.25'),
      /instances\[0\]\.lineItems\[0\]\.actions\[0\]\.alocation: there is no such field\. Did you mean allocation\?/,
    ],
    [
      'an unknown field of a condition',
      'instances:\n  - shortName: A\n    accountId: B\n    conditions:\n      - { name: C, operator: IN, property: p, value: [v] }\n',
      /site\.yaml:5: instances\[0\]\.conditions\[0\]\.value: there is no such field\. Did you mean values\?/,
    ],
    ['a section that is no list', 'instances: 5\n', /site\.yaml:1: instances: /],
    [
      'an unknown field',
      SITE.replace('    accountId', '    acountId'),
      /site\.yaml:11: instances\[0\]\.acountId: there is no such field\. Did you mean accountId\?/,
    ],
    [
      'a missing field',
      SITE.replace('    accountId: me\n', ''),
      /site\.yaml:10: instances\[0\]\.accountId: is missing/,
    ],
    [
      'a wrong value',
      SITE.replace('500.25', 'much'),
      /site\.yaml:22: instances\[0\]\.lineItems\[0\]\.actions\[0\]\.allocation: /,
    ],
    [
      'a number that must be text',
      SITE.replace("version: '1.0'", 'version: 1.0'),
      /site\.yaml:7: rateTables\[0\]\.items\[0\]\.version: must be text: write it in quotes/,
    ],
    [
      'a wrong time',
      SITE.replace('2026-01-01', '2026-13-01'),
      /site\.yaml:5: rateTables\[0\]\.effectiveFrom: Use 2026-05-01/,
    ],
    [
      'an unknown condition',
      SITE.replace('condition: design,', 'condition: desing,'),
      /site\.yaml:22: .*condition desing\. Did you mean design\?/,
    ],
    [
      'an object twice',
      SITE.replace('SECOND', 'FIRST-1000'),
      /site\.yaml:26: .*the same line item as at site\.yaml:18/,
    ],
    [
      'a wrong configuration value',
      SITE.replace('timezone.tolerant: true', 'timezone.tolerant: perhaps'),
      /site\.yaml:2: configuration\.timezone\.tolerant: timezone\.tolerant must be true or false/,
    ],
    [
      'an allowed condition without an allocation',
      SITE.replace(', allocation: 500.25', ''),
      /site\.yaml:22: .*actions\[0\]\.allocation: an ALLOW with a condition needs an allocation/,
    ],
    [
      'a window that ends before it starts',
      SITE.replace('quantity: 5', 'quantity: 5, start: 2026-02-01, end: 2026-01-01'.replaceAll(', ', '\n        ')),
      /site\.yaml:29: .*\.end: must not be before start/,
    ],
    [
      'an overdraft of an unknown type',
      SITE.replace('resetFrequency: MONTHLY', 'overdraftLimit: 5'),
      /site\.yaml:20: .*attributes\.overdraftType: is missing/,
    ],
    [
      'a new line item that cannot be used',
      SITE.replace('quantity: 5', 'quantity: 5\n        state: OBSOLETE'),
      /site\.yaml:26: .*OBSOLETE may be set only on a line item that is mapped already/,
    ],
    [
      'a condition that is nested too deeply',
      SITE.replace(/\n {8}operator: NOT\n[^]*guest\] \}/, `\n${deep(11)}`),
      /site\.yaml:14: .*is nested deeper than 10 levels/,
    ],
    [
      'a quantity that is larger than any',
      SITE.replace('quantity: 5', 'quantity: 99999999999999999999'),
      /FILE_INVALID: site\.yaml:27: \S+\.quantity: must be at most 9223372036854\. Correct/,
    ],
    ['YAML that is none', 'instances: [\n', /FILE_INVALID: site\.yaml:\d: /],
  ])('%s', async (_what, text, message) => {
    site = text
    const { code, err, out } = await apply()
    expect(err).toMatch(message)
    expect({ code, out }).toEqual({ code: 65, out: '' })
    expect((await run('instances', 'list')).out).toBe('No instances.\n')
  })

  test('several at once, and an object that cannot be changed', async () => {
    await apply()
    site = SITE.replace('rate: 0.85', 'rate: 0.9').replace('accountId: me', 'accountId: you')
    const { err } = await apply()
    expect(err).toMatch(
      /site\.yaml:4: .*The rate table 1 exists and cannot be changed .*site\.yaml:10: .*The instance Workshop exists/,
    )
  })
})

it('names the line of an object that the service refuses, and continues in the next run', async () => {
  const many = Array.from({ length: 100 }, (_, index) => `${index}${'x'.repeat(200)}`)
  const huge = `{ operator: AND, conditions: [${Array(100).fill(`{ operator: IN, property: role, values: [${many.join()}] }`).join()}] }`
  site = SITE.replace('{ operator: IN, property: role, values: [guest] }', huge)
  const { code, err } = await apply()
  expect(err).toContain('Stopped after 4 of 9 changes. Run the command again to continue.\n')
  expect(err).toMatch(/BODY_TOO_LARGE: site\.yaml:14: /)
  expect(code).toBe(1)
  site = SITE
  expect((await apply()).code).toBe(0)
})

it('stops after the change that it is making, and continues in the next run', async () => {
  const stop = new AbortController()
  const stdout = {
    write: (line: string) => {
      if (line.startsWith('+ rate table')) stop.abort()
    },
  }
  const { code, err } = await tallygate(['apply', '-f', 'site.yaml'], { ...world(), stop: () => stop.signal, stdout })
  expect(err).toBe('Stopped after 2 of 9 changes. Run the command again to continue.\n')
  expect(code).toBe(130)
  expect((await apply()).out).toMatch(/\n7 created, 0 changed, 2 unchanged\.\n$/)
})

it('names a file that does not exist and a cloud that does not respond', async () => {
  expect((await run('apply', '-f', '/no/site.yaml')).err).toContain(
    'USAGE: Cannot read /no/site.yaml: there is no such file.',
  )
  const away = await apply('--url', 'http://127.0.0.1:1')
  expect(away.code).toBe(69)
  expect(away.err).toMatch(/SERVICE_UNREACHABLE/)
})
