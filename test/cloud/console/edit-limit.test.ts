// A consumption limit that the forms of the console set and remove.
import { afterEach, beforeEach, describe, expect, it } from 'vitest'
import { DAY, MINUTE, START, type Twin, openTwin, pick } from '../harness.ts'
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

const FORM = '/line-items/limit'
const REMOVAL = '/line-items/limit/remove'
/** Of LASER-2026, in the scene. */
const SET = { limit: 500, frequency: 'WEEKLY', nextReset: START + 7 * DAY }

const formOf = async (path: string, lineItem: string): Promise<Form> => ({
  ...(await browser.form(`${path}?lineItem=${lineItem}`)),
  confirmed: 'yes',
})

const limitPath = (lineItem: string) =>
  `/api/v1.1/instances/${scene.instanceId}/line-items/${lineItem}/consumption-limit`
const limit = async (lineItem = 'LASER-2026') => (await twin.call('GET', limitPath(lineItem))).body
const audited = async (action: string) =>
  pick((await twin.call('GET', `/edge/api/v1/audit?action=${action}`)).body, 'records', 0, 'by', 'kind')

it('is shown in the list of line items, with a link for those who may change it', async () => {
  const rowOf = (page: string, id: string) => new RegExp(`${id}(?:</a>)?</th>[^]*?</tr>`).exec(page)?.[0] ?? ''
  const { page } = await browser.open('/line-items')
  expect(rowOf(page, 'LASER-2026')).toMatch(/>500 per requester, weekly<\/a>, resets\s+<time/)
  expect(rowOf(page, 'LASER-2026')).toContain('/line-items/limit?lineItem=LASER-2026"')
  expect(rowOf(page, 'PRINT-2026')).toMatch(/\/line-items\/limit\?lineItem=PRINT-2026"[^>]*>Add a limit<\/a>/)
  const reader = await Browser.limited(twin, { roles: ['read'] })
  const { page: read } = await reader.open('/line-items')
  expect(rowOf(read, 'LASER-2026')).toMatch(/500 per requester, weekly, resets\s+<time/)
  expect(rowOf(read, 'PRINT-2026')).toContain('<div>none</div>')
  expect(read).not.toContain('/line-items/limit')
})

it('is unchanged when its form is sent as it is', async () => {
  twin.now = START + 8 * DAY
  browser = await Browser.signedIn(twin)
  const before = await limit()
  expect(before).toEqual({ ...SET, nextReset: START + 14 * DAY })
  expect((await browser.send(FORM, await formOf(FORM, 'LASER-2026'))).status).toBe(303)
  expect(await limit()).toEqual(before)
})

it('is added, until the end of the current period, as the administrator', async () => {
  const form = { ...(await formOf(FORM, 'PRINT-2026')), limit: '1234567.000001', frequency: 'DAILY' }
  expect((await browser.send(FORM, form)).status).toBe(303)
  const midnight = twin.now - (twin.now % DAY) + DAY
  expect(await limit('PRINT-2026')).toEqual({ limit: 1_234_567.000001, frequency: 'DAILY', nextReset: midnight })
  expect(await formOf(FORM, 'PRINT-2026')).toMatchObject({ limit: '1234567.000001', frequency: 'DAILY' })
  expect(await audited('SET_CONSUMPTION_LIMIT')).toBe('ADMINISTRATOR')
})

it('gets another amount, frequency or reset, and keeps its reset unless the frequency changes', async () => {
  const change = async (fields: Form) => {
    expect((await browser.send(FORM, { ...(await formOf(FORM, 'LASER-2026')), ...fields })).status).toBe(303)
    return limit()
  }
  expect(await change({ limit: '600' })).toEqual({ ...SET, limit: 600 })
  expect(await change({ nextReset: '2031-01-01T06:00' })).toMatchObject({ nextReset: Date.UTC(2031, 0, 1, 6) })
  const now = new Date(twin.now)
  expect(await change({ frequency: 'MONTHLY' })).toEqual({
    limit: 600,
    frequency: 'MONTHLY',
    nextReset: Date.UTC(now.getUTCFullYear(), now.getUTCMonth() + 1, 1),
  })
})

it('limits each requester from then on, with the counts that an amount alone keeps', async () => {
  const isGranted = async (count: number) =>
    pick(
      (await twin.access(scene.instanceId, { 'Laser cut': count }, 'KimLee')).body,
      'requestedItems',
      0,
      'status',
      'code',
    ) === '1001'
  expect(await isGranted(30)).toBe(true)
  await browser.send(FORM, { ...(await formOf(FORM, 'LASER-2026')), limit: '480' })
  expect(await isGranted(1)).toBe(false)
  await browser.send(REMOVAL, await formOf(REMOVAL, 'LASER-2026'))
  expect(await isGranted(1)).toBe(true)
})

it('is not saved with a problem, which the page shows at its field beside the input', async () => {
  const form = await formOf(FORM, 'LASER-2026')
  for (const [change, problem] of [
    [{ limit: '' }, '>Tokens per requester: is missing<'],
    [{ limit: '0' }, '>Tokens per requester: must be greater than 0<'],
    [{ limit: '-5' }, '>Tokens per requester: must be greater than 0<'],
    [{ limit: 'many' }, '>Tokens per requester: must be a number in digits, such as 1000<'],
    [{ limit: '0.0000001' }, '>Tokens per requester: is above 0 and below 0.000001 tokens, the smallest amount<'],
    [{ limit: '9999999999999' }, '>Tokens per requester: must be at most 9223372036854.775807 tokens<'],
    [{ limit: '12345678901.234567' }, '>Tokens per requester: has too many digits. The nearest number is '],
    [{ frequency: 'HOURLY' }, '>Resets: '],
    [{ nextReset: 'soon' }, '>Next reset, UTC, can be empty: must be a time from 1970 to 9999, such as '],
    [{ nextReset: '12026-01-01T00:00' }, '>Next reset, UTC, can be empty: must be a time from 1970 to 9999, such as '],
    [{ nextReset: '0026-01-01T00:00' }, '>Next reset, UTC, can be empty: must be a time from 1970 to 9999, such as '],
    [{ nextReset: '2020-01-01T00:00' }, '>Next reset, UTC, can be empty: must be in the future<'],
  ] as const) {
    const { status, page } = await browser.send(FORM, { ...form, ...change })
    const [shown = ''] = /role="alert">[^]*?<\/div>/.exec(page) ?? []
    expect([change, status, shown]).toEqual([change, 400, expect.stringContaining(problem)])
    if (!('frequency' in change)) for (const value of Object.values(change)) expect(page).toContain(`value="${value}"`)
  }
  expect(await limit()).toEqual(SET)
})

it('is saved also if a browser sends its form again after the next reset', async () => {
  const form = {
    ...(await formOf(FORM, 'LASER-2026')),
    nextReset: new Date(twin.now + 10 * MINUTE).toISOString().slice(0, -1),
  }
  expect((await browser.send(FORM, form)).status).toBe(303)
  twin.now += 20 * MINUTE
  expect((await browser.send(FORM, form)).status).toBe(303)
  const { status, page } = await browser.send(FORM, { ...form, limit: '1' })
  expect([status, page]).toEqual([400, expect.stringContaining('must be in the future')])
})

describe('the removal', () => {
  it('is linked from the form of a limit, and removes it as the administrator', async () => {
    expect((await browser.open(`${FORM}?lineItem=LASER-2026`)).page).toContain(`${REMOVAL}?lineItem=LASER-2026"`)
    expect((await browser.open(`${FORM}?lineItem=PRINT-2026`)).page).not.toContain(REMOVAL)
    expect((await browser.send(REMOVAL, await formOf(REMOVAL, 'LASER-2026'))).status).toBe(303)
    expect(await limit()).toMatchObject({ code: 'NOT_FOUND' })
    expect(await audited('DELETE_CONSUMPTION_LIMIT')).toBe('ADMINISTRATOR')
    const { status, page } = await browser.open(`${REMOVAL}?lineItem=LASER-2026`)
    expect([status, page]).toEqual([200, expect.stringContaining('The line item has no consumption limit.')])
  })

  it('does not remove a limit that another administrator has set since', async () => {
    const form = await formOf(REMOVAL, 'LASER-2026')
    await browser.send(FORM, { ...(await formOf(FORM, 'LASER-2026')), limit: '700' })
    const { status, page } = await browser.send(REMOVAL, form)
    expect([status, page]).toEqual([400, expect.stringContaining('Now 700 tokens per requester, weekly')])
    expect(await limit()).toEqual({ ...SET, limit: 700 })
  })
})

it('does not overwrite changes of another administrator since, and shows them', async () => {
  const [mine, other] = [await formOf(FORM, 'LASER-2026'), await formOf(FORM, 'LASER-2026')]
  expect((await browser.send(FORM, { ...other, limit: '111' })).status).toBe(303)
  const { status, page } = await browser.send(FORM, { ...mine, limit: '222' })
  expect([status, page]).toEqual([400, expect.stringContaining('The rules of this instance have changed')])
  expect(page).toContain('Now 111 tokens per requester')
  expect(page).toContain('value="222"')
  const revision = /name="revision" value="(\d+)"/.exec(page)?.[1] ?? ''
  expect((await browser.send(FORM, { ...mine, limit: '222', revision })).status).toBe(303)
  expect(await limit()).toEqual({ ...SET, limit: 222 })
})

it('needs the token of the form, the confirmation, the role and the instance', async () => {
  const forms = [
    [FORM, { ...(await formOf(FORM, 'LASER-2026')), limit: '1' }],
    [REMOVAL, await formOf(REMOVAL, 'LASER-2026')],
  ] as const
  const other = await twin.instance('another customer')
  for (const [path, form] of forms) {
    const at = `${path}?instance=${scene.instanceId}`
    const { confirmed: _, ...unconfirmed } = form as Form
    expect([path, (await browser.send(at, { ...form, formToken: 'guessed' })).status]).toEqual([path, 403])
    expect([path, (await browser.send(at, unconfirmed)).status]).toEqual([path, 403])
    for (const [limits, code] of [
      [{ roles: ['operator'] }, '(ROLE_MISSING)'],
      [{ roles: ['rules'], instances: [other] }, '(INSTANCE_NOT_IN_SCOPE)'],
    ] as const) {
      const limited = await Browser.limited(twin, limits)
      const refused = await limited.send(at, { ...form, formToken: await limited.formToken() })
      expect([path, refused.status, refused.page]).toEqual([path, 403, expect.stringContaining(code)])
      if ('instances' in limits) expect((await limited.open(`${at}&lineItem=LASER-2026`)).status).toBe(403)
    }
  }
  expect(await limit()).toEqual(SET)
})

it('belongs to a line item that exists', async () => {
  for (const path of [FORM, REMOVAL]) expect((await browser.open(`${path}?lineItem=NONE`)).status).toBe(404)
  const form = { ...(await formOf(FORM, 'LASER-2026')), lineItem: 'NONE' }
  expect((await browser.send(FORM, form)).status).toBe(404)
})
