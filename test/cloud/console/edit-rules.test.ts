// Actions, conditions and rate tables that the forms of the console change.
import { afterEach, beforeEach, describe, expect, it } from 'vitest'
import { mayCommand } from '../../../src/cloud/console/device-commands.ts'
import { type Edit, type EditDeps, mayEdit, saveForm } from '../../../src/cloud/console/edit.ts'
import type { Administrator } from '../../../src/cloud/service-api/principal.ts'
import type { Instance } from '../../../src/cloud/storage/records.ts'
import { CodedError, type ErrorCode } from '../../../src/protocol/errors.ts'
import { DAY, type Twin, openTwin, pick, text } from '../harness.ts'
import { Browser, type Form } from './browse.ts'
import { type Scene, furnish } from './scene.ts'

let twin: Twin
let scene: Scene
let browser: Browser

beforeEach(async () => {
  twin = await openTwin()
  scene = await furnish(twin, true)
  browser = await Browser.signedIn(twin)
})
afterEach(() => twin[Symbol.asyncDispose]())

const formOf = async (path: string): Promise<Form> => ({ ...(await browser.form(path)), confirmed: 'yes' })

const rules = async (path: string) => (await twin.call('GET', `/api/v1.1/instances/${scene.instanceId}/${path}`)).body
const actions = () => rules('line-items/PRINT-2026/actions') as Promise<readonly Readonly<Record<string, unknown>>[]>
const conditions = () => rules('conditions') as Promise<readonly Readonly<Record<string, unknown>>[]>
const audited = async (action: string) =>
  pick((await twin.call('GET', `/edge/api/v1/audit?action=${action}`)).body, 'records', 0, 'by', 'kind')

const ACTIONS = '/rules/edit?lineItem=PRINT-2026'

describe('the actions of a line item', () => {
  it('are unchanged when their form is sent as it is', async () => {
    const before = await actions()
    expect((await browser.send('/rules/edit', await formOf(ACTIONS))).status).toBe(303)
    expect(await actions()).toEqual(before)
  })

  it('are changed, sorted, added and removed, and those that stay keep their use', async () => {
    const [sales, everyone] = await actions()
    const form = await formOf(ACTIONS)
    const added = { 'name.2': 'New', 'effect.2': 'DENY', 'position.2': '1', 'condition.2': form['condition.0']! }
    await browser.send('/rules/edit', { ...form, ...added, 'position.0': '2', 'allocation.0': '250.5' })
    expect(await actions()).toEqual([
      { id: expect.any(String) as string, name: 'New', conditionId: sales!['conditionId'], action: 'DENY' },
      { ...sales, allocation: 250.5 },
      everyone,
    ])
    await browser.send('/rules/edit', { ...(await formOf(ACTIONS)), 'effect.0': '' })
    expect((await actions()).map(({ id }) => id)).toEqual([sales!['id'], everyone!['id']])
    expect(await audited('REPLACE_ACTIONS')).toBe('ADMINISTRATOR')
  })

  it('are not saved with a problem, which the page shows beside the input', async () => {
    const before = await actions()
    const form = await formOf(ACTIONS)
    for (const [change, problem] of [
      [{ 'allocation.0': '-1' }, '>Allocation of action 1: '],
      [
        { 'allocation.0': '12345678901.234567' },
        '>Allocation of action 1: has too many digits. The nearest number is 12345678901.234568<',
      ],
      [{ 'allocation.0': '' }, '>Allocation of action 1: an ALLOW with a condition needs an allocation<'],
      [{ 'allocation.0': '1e3' }, '>Allocation of action 1: must be a number in digits, such as 1000<'],
      [{ 'condition.0': '' }, '>Condition of action 2: at most one action can have no condition<'],
      [{ 'condition.0': '', 'position.0': '9' }, '>Condition of action 1: at most one action can have no condition<'],
      [{ 'effect.2': 'PERHAPS' }, '>Effect of action 3: '],
      [{ 'position.0': '' }, 'Position of action 1: must be a number'],
      [{ 'position.1': 'last' }, 'Position of action 2: must be a number'],
      [{ 'name.2': 'No effect' }, 'Effect of action 3: choose an effect, or empty the row'],
      [{ 'allocation.3': '5' }, 'Effect of action 4: choose an effect, or empty the row'],
    ] as const) {
      const { status, page } = await browser.send('/rules/edit', { ...form, ...change, 'name.1': 'What was typed' })
      expect([change, status, page.includes(problem), page.includes('What was typed')]).toEqual([
        change,
        400,
        true,
        true,
      ])
    }
    expect(await actions()).toEqual(before)
  })
})

it('links each problem to its input, also in a row', async () => {
  const form = { ...(await formOf(ACTIONS)), 'position.0': '9', 'allocation.0': '-1' }
  const { page } = await browser.send('/rules/edit', form)
  expect(page).toContain('<p id="problem-0"><a href="#field-allocation.0">Allocation of action 1: ')
  const [input = ''] = /<input[^>]* name="allocation\.0"/.exec(page) ?? []
  expect(input).toContain('aria-label="Allocation of action 1"')
  expect(input).toContain('id="field-allocation.0" aria-invalid="true" aria-describedby="problem-0"')
  expect(page.match(/aria-invalid=/g)).toHaveLength(1)
})

describe('a form with more than it shows', () => {
  it('takes as many rows as it shows, and refuses more', async () => {
    const row = (n: number) => ({ [`effect.${n}`]: '', [`name.${n}`]: 'x' })
    const items = (n: number) => ({ [`item.${n}`]: '' })
    for (const [path, form, rowOf, most] of [
      ['/rules/edit', await formOf(ACTIONS), row, 53],
      ['/rate-tables/edit', await formOf('/rate-tables/edit'), items, 103],
    ] as const) {
      const rows = (count: number) => Object.assign({}, ...Array.from({ length: count }, (_, n) => rowOf(n))) as Form
      const sent = (count: number) => browser.send(path, { ...rows(count), ...form })
      expect([path, (await sent(most)).status === 403]).toEqual([path, false])
      const { status, page } = await sent(most + 1)
      expect([path, status]).toEqual([path, 403])
      expect(page).toContain(`The form has ${most + 1} rows, and takes up to ${most}.`)
      expect(page.length).toBeLessThan(20_000)
    }
  })

  it('counts no fields whose numbers are not those of rows', async () => {
    const odd = Object.fromEntries(
      ['1e3', '-1', '', '01.5', 'x', '0x1', ...Array.from({ length: 60 }, (_, n) => `0.${n}`)].map((row) => [
        `effect.${row}`,
        'ALLOW',
      ]),
    )
    expect((await browser.send('/rules/edit', { ...(await formOf(ACTIONS)), ...odd })).status).toBe(303)
    expect(await actions()).toHaveLength(2)
  })

  it('warns about too many conditions', async () => {
    const many = Array.from({ length: 201 }, (_, n) => ({
      ...{ name: `Condition ${n}`, operator: 'IN', property: 'department', values: ['sales'] },
    }))
    await twin.call('POST', `/api/v1.1/instances/${scene.instanceId}/conditions`, { body: many })
    const { page } = await browser.open(ACTIONS)
    expect(page).toContain('This instance has 202 conditions, and the form takes up to 200.')
    expect(page).not.toContain('Condition 7')
  })
})

/** JSON of a condition in so many levels. */
const nested = (levels: number): string =>
  levels === 1
    ? '{"operator":"IN","property":"team","values":["cut"]}'
    : `{"operator":"NOT","condition":${nested(levels - 1)}}`

describe('a condition', () => {
  const find = async () => `/rules/condition?condition=${text(await conditions(), 0, 'id')}`

  it('is unchanged when its form is sent as it is', async () => {
    const before = await conditions()
    expect((await browser.send('/rules/condition', await formOf(await find()))).status).toBe(303)
    expect(await conditions()).toEqual(before)
  })

  it('is changed and created, with values or as JSON', async () => {
    await browser.send('/rules/condition', {
      ...(await formOf(await find())),
      values: 'sales\r\n\u{1f469}\u200d\u{1f4bb}\r\n',
    })
    expect(pick(await conditions(), 0, 'values')).toEqual(['sales', '\u{1f469}\u200d\u{1f4bb}'])
    expect(await audited('CHANGE_CONDITIONS')).toBe('ADMINISTRATOR')
    expect((await formOf(await find()))['values']).toBe('sales\n\u{1f469}\u200d\u{1f4bb}')
    const created = { ...(await formOf('/rules/condition')), name: 'Cutters', property: 'team', values: 'cut' }
    await browser.send('/rules/condition', created)
    const nots = await browser.send('/rules/condition', {
      ...(await formOf('/rules/condition?as=json')),
      name: 'Not sales',
    })
    expect([nots.status, /role="alert">[^]*?<\/div>/.exec(nots.page)?.[0]]).toEqual([303, undefined])
    const all = await conditions()
    expect(all.map(({ operator }) => operator)).toEqual(['IN', 'IN', 'NOT'])
    const inner = text(all, 2, 'id')
    expect((await browser.send('/rules/condition', await formOf(`/rules/condition?condition=${inner}`))).status).toBe(
      303,
    )
    expect(await conditions()).toEqual(all)
  })

  it('is not saved with a problem', async () => {
    const before = await conditions()
    const form = await formOf(await find())
    for (const [change, problem] of [
      [{ values: ' ' }, 'Values, one on each line: must not be empty'],
      [{ property: '' }, 'Property of the requester: is missing'],
      [{ values: `sales\n${'x'.repeat(1001)}` }, 'one on each line: value 2 must have at most 1000 characters'],
      [{ json: '{"operator":"IN","property":"a","values":["b"]}', name: 'x'.repeat(257) }, 'Name: must have at most'],
      [{ json: nested(11) }, 'OR, NOT and IN: nests deeper than 10 levels'],
      [{ json: '{' }, 'OR, NOT and IN: is not JSON'],
      [{ json: '{"operator":"XOR"}' }, 'OR, NOT and IN: operator'],
      [{ json: '5' }, 'OR, NOT and IN: must be an object'],
    ] as const) {
      const { status, page } = await browser.send('/rules/condition', { ...form, ...change })
      const shown = /role="alert"><p[^>]*>(?:<a[^>]*>)?([^<]*)/.exec(page)?.[1]
      expect([change, status, shown]).toEqual([change, 400, expect.stringContaining(problem)])
    }
    expect(await conditions()).toEqual(before)
  })
})

describe('a rate table', () => {
  const next = '/rate-tables/edit?series=laser&version=1'
  const tables = async () => {
    const { body } = await twin.call('GET', '/provisioning/api/v1.1/rate-tables')
    return (body as readonly { readonly series: string; readonly version: string }[]).filter(
      ({ series }) => series === 'laser',
    )
  }
  const later = (): string => new Date(twin.now + DAY).toISOString().slice(0, 16)

  it('begins with the rates of another one, and takes effect at its time', async () => {
    const form = await formOf(next)
    const version = { version: '2', effectiveFrom: later() }
    expect((await browser.send('/rate-tables/edit', { ...form, ...version, 'rate.1': '5.25' })).status).toBe(303)
    expect((await tables()).find(({ version: each }) => each === '2')).toMatchObject({
      effectiveFrom: Date.parse(`${later()}Z`),
      items: [
        { name: 'Laser cut', rate: 12.5 },
        { name: 'Engrave', rate: 5.25 },
      ],
    })
    expect(await audited('CREATE_RATE_TABLE')).toBe('ADMINISTRATOR')
  })

  it('is saved once if a browser sends its form again', async () => {
    const form: Form = { ...(await formOf(next)), version: '2', effectiveFrom: later() }
    const sent = await Promise.all([browser.send('/rate-tables/edit', form), browser.send('/rate-tables/edit', form)])
    expect(sent.map(({ status }) => status)).toEqual([303, 303])
    expect(await tables()).toHaveLength(2)
    const other = await browser.send('/rate-tables/edit', { ...form, version: '3' })
    expect([other.status, other.page]).toEqual([
      400,
      expect.stringContaining('has already created one, with other values'),
    ])
    expect(await tables()).toHaveLength(2)
  })

  it('is not saved with a problem', async () => {
    const form: Form = { ...(await formOf(next)), version: '2', effectiveFrom: later() }
    for (const [change, problem] of [
      [{ version: '1' }, '(CONFLICT)'],
      [{ effectiveFrom: 'soon' }, '>Effective from, UTC: must be a time from 1970 to 9999, such as '],
      [{ effectiveFrom: '0026-01-01T00:00' }, '>Effective from, UTC: must be a time from 1970 to 9999, such as '],
      [{ 'rate.0': '-1' }, '>Tokens per unit of row 1: '],
      [
        { 'rate.0': '0.12345678901234567891' },
        '>Tokens per unit of row 1: has too many digits. The nearest number is 0.12345678901234568<',
      ],
      [
        { 'rate.0': '9007199254740993' },
        '>Tokens per unit of row 1: has too many digits. The nearest number is 9007199254740992<',
      ],
      [{ 'rate.0': '', 'formula.0': '1+' }, '>Formula of row 1: '],
      [{ 'item.0': '', 'rate.0': '', 'item.1': '', 'rate.1': '' }, '>Item of row 1: must not be empty'],
      [{ 'item.1': 'Laser cut' }, '>Item of row 2: is listed twice with this version<'],
    ] as const) {
      const { status, page } = await browser.send('/rate-tables/edit', { ...form, ...change })
      expect([change, status, page.includes(problem)]).toEqual([change, 400, true])
    }
    expect(await tables()).toHaveLength(1)
  })
})

it('needs the token of the form, the confirmation, the role and the instance', async () => {
  const before = [await actions(), await conditions()]
  for (const [path, form] of [
    ['/rules/edit', { ...(await formOf(ACTIONS)), 'effect.0': '' }],
    ['/rules/condition', { ...(await formOf('/rules/condition')), property: 'a', values: 'b' }],
    ['/rate-tables/edit', { ...(await formOf('/rate-tables/edit')), version: 'x' }],
  ] as const) {
    const { confirmed: _, ...unconfirmed } = form as Form
    const guessed = await browser.send(`${path}?instance=${scene.instanceId}`, { ...form, formToken: 'guessed' })
    expect([path, guessed.status]).toEqual([path, 403])
    expect([path, (await browser.send(path, unconfirmed)).status]).toEqual([path, 403])
    const operator = await Browser.limited(twin, { roles: ['operator'] })
    const formToken = await operator.formToken('')
    expect((await operator.send(path, { ...form, formToken })).page).toContain('(ROLE_MISSING)')
    expect((await operator.open('/rules')).page).not.toContain('Change actions')
    const other = await Browser.limited(twin, {
      roles: ['rules', 'read'],
      instances: [await twin.instance('another customer')],
    })
    const refused = await other.send(`${path}?instance=${scene.instanceId}`, {
      ...form,
      formToken: await other.formToken(''),
    })
    expect([path, refused.status, refused.page.includes('(INSTANCE_NOT_IN_SCOPE)')]).toEqual([path, 403, true])
  }
  expect([await actions(), await conditions()]).toEqual(before)
})

it('is offered in the instances in which a user has the role, and for all only with the role in all', () => {
  const [own, other] = [{ id: 'A' }, { id: 'B' }] as Instance[]
  const administrator: Administrator = {
    ...{ kind: 'ADMINISTRATOR', keyId: 'ada', name: 'Ada', issuer: 'https://login.example', scope: null },
    ...{ instances: null, deviceId: null },
    rights: [
      { roles: ['read'], instances: null },
      { roles: ['rules', 'operator'], instances: new Set(['a']) },
    ],
  }
  const may = (concerns: Edit['concerns'], instance: Instance | null) =>
    mayEdit({ administrator, instance }, { concerns })
  expect([own, other, null].map((instance) => may('INSTANCE', instance ?? null))).toEqual([true, false, false])
  expect([may('ALL_CELLS', own!), may('ACCOUNT', own!)]).toEqual([false, false])
  expect([['A'], ['B'], ['A', 'B'], undefined].map((ids) => mayCommand({ administrator }, ids))).toEqual([
    ...[true, false, false],
    true,
  ])
})

it('is offered only where the administrator may save it', async () => {
  const ofOne = await Browser.limited(twin, { roles: ['rules'], instances: [scene.instanceId] })
  expect((await ofOne.open('/rules')).page).toContain('Change actions')
  expect((await ofOne.open('/line-items')).page).toContain('New line item')
  for (const path of ['/rate-tables', '/rate-tables?series=laser&version=1']) {
    expect((await browser.open(path)).page).toContain('/rate-tables/edit')
    expect((await ofOne.open(path)).page).not.toContain('/rate-tables/edit')
  }
})

it('says that a form can be saved again if a commit is not confirmed and the database stops responding', async () => {
  const failing = (code: ErrorCode) => () => Promise.reject(new CodedError(code, 'no answer.'))
  const edit = { path: '/x', concerns: 'ACCOUNT', save: failing('OUTCOME_UNKNOWN') } as unknown as Edit
  const deps = { store: { transaction: failing('DATABASE_UNREACHABLE') }, editor: {} } as unknown as EditDeps
  const problems = await saveForm(edit, deps, { key: 'k' })
  expect(problems.map(({ text: shown }) => shown)).toEqual([
    expect.stringContaining('Save the form again: nothing is created twice.'),
  ])
})

describe('a form', () => {
  const NEW: Form = { name: 'Night shift', property: 'shift', values: 'night' }
  const CHANGED = 'The rules of this instance have changed since this form was opened.'

  it('that is sent twice is saved once', async () => {
    const before = await conditions()
    const form = { ...(await formOf('/rules/condition')), ...NEW }
    const sent = await Promise.all([browser.send('/rules/condition', form), browser.send('/rules/condition', form)])
    expect(sent.map(({ status }) => status)).toEqual([303, 303])
    expect(await conditions()).toHaveLength(before.length + 1)
  })

  it('that a browser sends again is saved once, and not taken for a change of another administrator', async () => {
    const form = { ...(await formOf(ACTIONS)), 'allocation.0': '111' }
    expect((await browser.send('/rules/edit', form)).status).toBe(303)
    const saved = await actions()
    expect((await browser.send('/rules/edit', form)).status).toBe(303)
    expect(await actions()).toEqual(saved)
    const changed = await browser.send('/rules/edit', { ...form, 'allocation.0': '112' })
    expect([changed.status, changed.page]).toEqual([400, expect.stringContaining(CHANGED)])
  })

  it('for a new line item that a browser sends again is not refused because the line item exists', async () => {
    const form = { ...(await browser.form('/line-items/edit')), activationId: 'SCAN-2027', quantity: '10' }
    for (const times of ['once', 'twice']) {
      const { status } = await browser.send('/line-items/edit', form)
      expect([times, status]).toEqual([times, 303])
    }
    const other = await browser.send('/line-items/edit', { ...form, quantity: '11' })
    expect([other.status, other.page]).toEqual([400, expect.stringContaining('SCAN-2027 exists already.')])
  })

  it('that was refused is not saved when it is sent again after a change', async () => {
    const wrong = { ...(await browser.form('/line-items/edit?lineItem=PRINT-2026')), end: '2020-01-01T00:00' }
    expect((await browser.send('/line-items/edit', wrong)).status).toBe(400)
    expect((await browser.send('/rules/edit', { ...(await formOf(ACTIONS)), 'allocation.0': '111' })).status).toBe(303)
    const { status, page } = await browser.send('/line-items/edit', wrong)
    expect([status, page]).toEqual([400, expect.stringContaining(CHANGED)])
  })

  it('creates one condition if a browser goes back to it after the answer was lost', async () => {
    const before = await conditions()
    const opened = /"[^"]*console([^"]*)">New condition</.exec((await browser.open('/rules')).page)?.[1] ?? ''
    await browser.send('/rules/condition', { ...(await formOf(opened)), ...NEW })
    const again = { ...(await formOf(opened)), ...NEW }
    expect((await browser.send('/rules/condition', again)).status).toBe(303)
    expect(await conditions()).toHaveLength(before.length + 1)
    const other = await browser.send('/rules/condition', { ...again, values: 'day' })
    expect([other.status, other.page]).toEqual([
      400,
      expect.stringContaining('has already created one, with other values'),
    ])
    expect((await browser.open(opened)).page).toContain(`as=json&amp;key=${again['key'] ?? ''}`)
  })

  it('that changes nothing leaves its page to other changes', async () => {
    const [{ id = '' } = {}] = (await conditions()) as readonly { readonly id?: string }[]
    const form = await formOf(`/rules/condition?condition=${id}`)
    expect((await browser.send('/rules/condition', form)).status).toBe(303)
    const changed = { ...(await formOf(`/rules/condition?condition=${id}`)), values: 'night' }
    expect((await browser.send('/rules/condition', changed)).status).toBe(303)
    expect(await conditions()).toMatchObject([{ id, values: ['night'] }])
  })

  it('with the key of a form of another instance is saved', async () => {
    const other = await twin.instance('another customer')
    const in1 = { ...(await formOf(`/rules/condition?instance=${scene.instanceId}&key=k`)), ...NEW }
    const in2 = { ...(await formOf(`/rules/condition?instance=${other}&key=k`)), ...NEW }
    expect((await browser.send(`/rules/condition?instance=${scene.instanceId}`, in1)).status).toBe(303)
    expect((await browser.send(`/rules/condition?instance=${other}`, in2)).status).toBe(303)
    const { body } = await twin.call('GET', `/api/v1.1/instances/${other}/conditions`)
    expect(body).toMatchObject([{ name: 'Night shift' }])
  })

  it('does not overwrite changes since it was opened, and can be saved again', async () => {
    const [mine, other] = [await formOf(ACTIONS), await formOf(ACTIONS)]
    expect((await browser.send('/rules/edit', { ...other, 'allocation.0': '111' })).status).toBe(303)
    const { status, page } = await browser.send('/rules/edit', { ...mine, 'allocation.0': '222' })
    expect(status).toBe(400)
    expect(page.split(CHANGED)).toHaveLength(2)
    expect(page).toContain('value="222"')
    expect((await actions())[0]).toMatchObject({ allocation: 111 })
    const revision = /name="revision" value="(\d+)"/.exec(page)?.[1] ?? ''
    expect((await browser.send('/rules/edit', { ...mine, 'allocation.0': '222', revision })).status).toBe(303)
    expect((await actions())[0]).toMatchObject({ allocation: 222 })
  })

  it('names changes since it was opened also when it is refused for another reason', async () => {
    const [mine, other] = [await formOf(ACTIONS), await formOf(ACTIONS)]
    const wrong = { ...mine, 'allocation.0': 'many' }
    const first = await browser.send('/rules/edit', wrong)
    expect([first.status, first.page.includes(CHANGED)]).toEqual([400, false])
    expect((await browser.send('/rules/edit', { ...other, 'allocation.0': '111' })).status).toBe(303)
    for (const form of [wrong, { ...mine, formToken: 'of an earlier sign-in' }]) {
      const { page } = await browser.send('/rules/edit', form)
      expect(page.split(CHANGED)).toHaveLength(2)
    }
  })

  it('keeps the input if the sign-in ends before it is sent', async () => {
    const before = await conditions()
    const form = { ...(await formOf('/rules/condition')), ...NEW }
    twin.now += DAY
    const late = await browser.send('/rules/condition', form)
    expect(late.status).toBe(401)
    expect(late.page).toContain(
      'The form was not saved. Sign in in another tab, then reload this page to send it again.',
    )
    browser = await Browser.signedIn(twin)
    const again = await browser.send('/rules/condition', form)
    expect(again.status).toBe(403)
    expect(again.page).toContain('The form belongs to an earlier sign-in. Check it, then save it again.')
    expect(again.page).toContain('value="Night shift"')
    expect(await conditions()).toEqual(before)
    const formToken = /name="formToken" value="([^"]+)"/.exec(again.page)?.[1] ?? ''
    expect((await browser.send('/rules/condition', { ...form, formToken })).status).toBe(303)
    expect(await conditions()).toHaveLength(before.length + 1)
    const foreign = await browser.send('/rules/condition', form, { 'sec-fetch-site': 'cross-site' })
    expect([foreign.status, foreign.page.includes('Night shift')]).toEqual([403, false])
  })
})
