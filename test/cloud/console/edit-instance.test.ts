// An instance that the form of the console creates.
import { afterEach, beforeEach, expect, it } from 'vitest'
import { type Twin, openTwin, pick } from '../harness.ts'
import { type Form, Browser } from './browse.ts'

let twin: Twin
let browser: Browser

const FORM = '/instances/edit'
const NEW = { shortName: 'Plant 8', accountId: 'customer-8' }

beforeEach(async () => {
  twin = await openTwin()
  browser = await Browser.signedIn(twin)
})
afterEach(() => twin[Symbol.asyncDispose]())

const linkIn = (page: string): string => /"[^"]*console([^"]*)">New instance</.exec(page)?.[1] ?? ''

const listed = async (): Promise<unknown> =>
  pick((await twin.call('GET', '/provisioning/api/v1.1/instances')).body, 'content')

it('is created, as the administrator, and is on the overview', async () => {
  expect((await browser.open('')).page).toContain('>New instance</a>')
  const { status, headers } = await browser.send(FORM, { ...(await browser.form(FORM)), ...NEW })
  expect([status, headers.get('location')]).toEqual([303, expect.stringMatching(/\/console$/)])
  expect(await listed()).toEqual([expect.objectContaining({ ...NEW, defaultInstance: true })])
  expect((await browser.open('')).page).toContain('Plant 8 (')
  const { body } = await twin.call('GET', '/edge/api/v1/audit?action=CREATE_INSTANCE')
  expect(pick(body, 'records', 0, 'by', 'kind')).toBe('ADMINISTRATOR')
})

it('can be created where there is one instance already', async () => {
  await twin.instance('customer-8')
  expect((await browser.open('')).page).toContain('>New instance</a>')
  await browser.send(FORM, { ...(await browser.form(FORM)), ...NEW })
  expect(await listed()).toEqual([
    expect.anything(),
    expect.objectContaining({ shortName: 'Plant 8', defaultInstance: false }),
  ])
})

it('is created once if the form is sent twice', async () => {
  const form = { ...(await browser.form(FORM)), ...NEW }
  const sent = [await browser.send(FORM, form), await browser.send(FORM, form)]
  expect(sent.map(({ status }) => status)).toEqual([303, 303])
  expect(await listed()).toHaveLength(1)
  const changed = await browser.send(FORM, { ...form, shortName: 'Plant 9' })
  expect([changed.status, changed.page]).toEqual([
    400,
    expect.stringContaining('has already created one, with other values'),
  ])
  await browser.send(FORM, { ...(await browser.form(FORM)), ...NEW })
  expect(await listed()).toHaveLength(2)
})

it('is created once if a browser goes back to the form after the answer was lost', async () => {
  const opened = linkIn((await browser.open('')).page)
  const form = await browser.form(opened)
  await browser.send(FORM, { ...form, ...NEW })
  const again = await browser.form(opened)
  expect((await browser.send(FORM, { ...again, ...NEW })).status).toBe(303)
  expect(await listed()).toHaveLength(1)
  const address = /action="[^"]*console([^"]*)"/.exec((await browser.open(opened)).page.split('<main')[1] ?? '')?.[1]
  expect((await browser.form(address ?? ''))['key']).toBe(form['key'])
  expect(linkIn((await browser.open('')).page)).not.toBe(opened)
})

it('is created by a form with a key only, and an address with an empty key gives the form one', async () => {
  const { key, ...form } = { ...(await browser.form(`${FORM}?key=`)), ...NEW } as Form
  expect(key).toMatch(/^[\da-f-]{36}$/)
  for (const without of [form, { ...form, key: '' }]) {
    const { status, page } = await browser.send(FORM, without)
    expect([status, page]).toEqual([400, expect.stringContaining('The form has no key')])
  }
  expect(await listed()).toHaveLength(0)
})

it('has Overview as the current entry of the menu', async () => {
  expect((await browser.open(FORM)).page).toMatch(/console" aria-current="page">Overview</)
})

it('is not created with a problem, which the page shows beside the input', async () => {
  const form: Form = { ...(await browser.form(FORM)), ...NEW }
  for (const [change, problem, name] of [
    [{ shortName: ' ' }, 'Name: is missing', 'shortName'],
    [{ shortName: 'x'.repeat(101) }, 'Name: must have at most 100 characters', 'shortName'],
    [{ shortName: 'x'.repeat(201) }, 'Name: must have at most 100 characters', 'shortName'],
    [{ accountId: '' }, 'Customer account: is missing', 'accountId'],
  ] as const) {
    const { status, page } = await browser.send(FORM, { ...form, ...change })
    expect([change, status, page.includes(problem)]).toEqual([change, 400, true])
    expect(page).toContain(` id="field-${name}" aria-invalid="true" aria-describedby="problem-0" name="${name}"`)
    expect(page).toContain(`value="${form['key'] ?? ''}"`)
  }
  expect(await listed()).toEqual([])
})

it('needs the token of the form, and the role rules in all instances', async () => {
  const form = { ...(await browser.form(FORM)), ...NEW }
  expect((await browser.send(FORM, { ...form, formToken: 'guessed' })).status).toBe(403)
  const other = await twin.instance('another customer')
  for (const [limits, code] of [
    [{ roles: ['operator'] }, 'ROLE_MISSING'],
    [{ roles: ['rules'], instances: [other] }, 'INSTANCE_NOT_IN_SCOPE'],
  ] as const) {
    const limited = await Browser.limited(twin, limits)
    expect((await limited.open('')).page).not.toContain('New instance')
    const { status, page } = await limited.send(FORM, { ...form, formToken: await limited.formToken() })
    expect([limits, status, page.includes(`(${code})`)]).toEqual([limits, 403, true])
  }
  expect(await listed()).toHaveLength(1)
})
