// A line item that the form of the console maps or replaces.
import { afterEach, beforeEach, expect, it } from 'vitest'
import { INSTANT_MAX } from '../../../src/protocol/wire.ts'
import { type Twin, openTwin, pick } from '../harness.ts'
import { Browser } from './browse.ts'
import { type Scene, furnish } from './scene.ts'

let twin: Twin
let scene: Scene
let browser: Browser

beforeEach(async () => {
  twin = await openTwin()
  scene = await furnish(twin, false)
  browser = await Browser.signedIn(twin)
})
afterEach(() => twin[Symbol.asyncDispose]())

const shown = async (id: string): Promise<unknown> =>
  (await twin.call('GET', `/provisioning/api/v1.1/instances/${scene.instanceId}/line-items/${id}`)).body

it('is unchanged when its form is sent as it is', async () => {
  for (const id of ['PRINT-2026', 'LASER-2026', 'SCAN-2025']) {
    const before = await shown(id)
    const { status } = await browser.send('/line-items/edit', await browser.form(`/line-items/edit?lineItem=${id}`))
    expect([id, status]).toEqual([id, 303])
    expect(await shown(id)).toEqual(before)
  }
})

it('is unchanged when its form is sent as it is, also with quantities above the largest amount', async () => {
  for (const quantity of [2 ** 53 + 2, 2 ** 60, 2 ** 63]) {
    await twin.lineItem(scene.instanceId, { activationId: 'PRINT-2026', quantity })
    const before = await shown('PRINT-2026')
    const form = await browser.form('/line-items/edit?lineItem=PRINT-2026')
    expect([quantity, (await browser.send('/line-items/edit', form)).status]).toEqual([quantity, 303])
    expect(await shown('PRINT-2026')).toEqual(before)
  }
})

it('gets another quantity and end, as the administrator', async () => {
  const form = await browser.form('/line-items/edit?lineItem=PRINT-2026')
  await browser.send('/line-items/edit', { ...form, quantity: '7000', end: '2027-01-01T00:00' })
  expect(await shown('PRINT-2026')).toMatchObject({ quantity: 7_000, end: Date.UTC(2027, 0, 1) })
  const { body } = await twin.call('GET', '/edge/api/v1/audit?action=MAP_LINE_ITEM')
  expect(pick(body, 'records', 0, 'by', 'kind')).toBe('ADMINISTRATOR')
})

it('is mapped when it is new', async () => {
  const form = { ...(await browser.form('/line-items/edit')), activationId: 'NEW', quantity: '5' }
  const { status } = await browser.send('/line-items/edit', {
    ...form,
    start: '2026-01-01T00:00',
    end: '2027-01-01T00:00',
  })
  expect(status).toBe(303)
  expect(await shown('NEW')).toMatchObject({ state: 'DEPLOYED', quantity: 5, attributes: { elastic: true } })
})

it('is valid at any time when the form has no start and no end', async () => {
  const form = { ...(await browser.form('/line-items/edit')), activationId: 'NEW', quantity: '5' }
  expect((await browser.send('/line-items/edit', form)).status).toBe(303)
  expect(await shown('NEW')).toMatchObject({ start: 0, end: INSTANT_MAX })
  expect(await browser.form('/line-items/edit?lineItem=NEW')).toMatchObject({ start: '', end: '' })
  const shownIn = async (path: string) =>
    /NEW\b[^]*?<\/tr>/.exec((await browser.open(path)).page.split('<tbody')[1]!)?.[0]
  expect(await shownIn('/line-items')).toMatch(/<div>always<\/div>/)
  expect(await shownIn('')).toMatch(/<div>without end<\/div>/)
})

it('replaces no other line item', async () => {
  const before = await shown('SCAN-2025')
  for (const path of ['/line-items/edit', '/line-items/edit?lineItem=PRINT-2026']) {
    const form = { ...(await browser.form(path)), activationId: 'SCAN-2025', quantity: '5' }
    const { status, page } = await browser.send('/line-items/edit', form)
    expect([status, page]).toEqual([400, expect.stringContaining('Line item: SCAN-2025 exists already.')])
  }
  expect(await shown('SCAN-2025')).toEqual(before)
  await browser.send('/line-items/edit', {
    ...(await browser.form('/line-items/edit?lineItem=SCAN-2025')),
    state: 'OBSOLETE',
  })
  const path = `/provisioning/api/v1.1/instances/${scene.instanceId}/line-items/SCAN-2025`
  expect((await twin.call('DELETE', path)).status).toBeLessThan(300)
  const form = { ...(await browser.form('/line-items/edit')), activationId: 'SCAN-2025', quantity: '5' }
  expect((await browser.send('/line-items/edit', form)).status).toBe(303)
})

it('is not saved with a problem, which the page shows beside the input', async () => {
  const form = await browser.form('/line-items/edit?lineItem=PRINT-2026')
  const before = await shown('PRINT-2026')
  for (const [change, problem] of [
    [{ end: '2020-01-01T00:00' }, 'End, UTC, if any: must not be before start'],
    [{ quantity: '1.5' }, '>Quantity, tokens: must be a whole number<'],
    [{ quantity: '-1' }, '>Quantity, tokens: must be at least 0<'],
    [{ quantity: '1e3' }, '>Quantity, tokens: must be a number in digits, such as 1000<'],
    [{ quantity: '99999999999999999999' }, '>Quantity, tokens: must be at most 9223372036854<'],
    [{ activationId: 'x'.repeat(800) }, '>Line item: must have at most 256 characters</a></p></div>'],
    [{ start: 'soon' }, '>Start, UTC, if any: must be a time from 1970 to 9999, such as '],
    [{ start: '0026-01-01T00:00' }, '>Start, UTC, if any: must be a time from 1970 to 9999, such as '],
    [{ end: '12026-01-01T00:00' }, '>End, UTC, if any: must be a time from 1970 to 9999, such as '],
    [{ overdraftType: 'Number' }, '>Overdraft limit, tokens: is missing'],
    [{ activationId: 'ANOTHER', state: 'OBSOLETE' }, '>State: '],
  ] as const) {
    const { status, page } = await browser.send('/line-items/edit', { ...form, ...change })
    expect([change, status, page.includes(problem)]).toEqual([change, 400, true])
    for (const value of Object.values(change)) expect(page).toContain(value)
  }
  expect(await shown('PRINT-2026')).toEqual(before)
})

it('describes each field that a problem names by that problem, which links to the field', async () => {
  const form = await browser.form('/line-items/edit?lineItem=PRINT-2026')
  const { page } = await browser.send('/line-items/edit', { ...form, activationId: '', quantity: '1.5' })
  for (const [at, name] of ['activationId', 'quantity'].entries()) {
    expect(page).toContain(`<p id="problem-${at}"><a href="#field-${name}">`)
    const field = ` id="field-${name}" aria-invalid="true" aria-describedby="problem-${at}" name="${name}"`
    expect(page).toContain(field)
  }
  expect(page.match(/aria-invalid=/g)).toHaveLength(2)
})

it('needs the token of the form, the role rules, and its instance', async () => {
  const form = await browser.form('/line-items/edit?lineItem=PRINT-2026')
  expect((await browser.send('/line-items/edit', { ...form, formToken: 'guessed', quantity: '1' })).status).toBe(403)
  for (const limits of [
    { roles: ['operator'] },
    { roles: ['rules'], instances: [await twin.instance('another customer')] },
  ]) {
    const limited = await Browser.limited(twin, limits)
    const formToken = await limited.formToken()
    const path = `/line-items/edit?instance=${scene.instanceId}`
    const { status } = await limited.send(path, { ...form, formToken, quantity: '1' })
    expect([limits, status]).toEqual([limits, 403])
  }
  expect(await shown('PRINT-2026')).toMatchObject({ quantity: 5_000 })
})
