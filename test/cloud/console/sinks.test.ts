// Sinks of events in the console: what they lack, and the same commands as `tallygate events`.
import { afterEach, beforeEach, describe, expect, it } from 'vitest'
import { MINUTE, type Twin, openTwin, pick } from '../harness.ts'
import { Browser } from './browse.ts'
import { makeFailingSink } from './failing-sink.ts'

let twin: Twin
let browser: Browser

beforeEach(async () => {
  twin = await openTwin()
  browser = await Browser.signedIn(twin)
})
afterEach(() => twin[Symbol.asyncDispose]())

async function command(name: string, form: Readonly<Record<string, string>> = {}, by = browser) {
  return by.send(`/sinks/billing/${name}`, { formToken: await by.formToken(), ...form })
}

const state = async () => pick((await twin.call('GET', '/edge/api/v1/event-sinks')).body, 'sinks') as readonly object[]
const changes = async () => {
  const { body } = await twin.call('GET', '/edge/api/v1/audit?size=10')
  return (pick(body, 'records') as readonly { action: string }[]).map(({ action }) => action)
}

describe('the sinks of events', () => {
  it('are in the settings, as the page without one says', async () => {
    const { status, page } = await browser.open('/sinks')
    expect([status, page]).toEqual([200, expect.stringContaining('<code>events.webhooks</code>')])
    expect((await browser.open('/sinks/billing')).status).toBe(404)
  })

  it('are listed with their next attempt, problem and dead letters', async () => {
    makeFailingSink(twin, 2, '<b>gone</b>')
    const { page } = await browser.open('/sinks')
    for (const shown of ['billing', 'not in the settings', 'in 3 minutes', 'it responded with 503'])
      expect(page).toContain(shown)
    const { page: one } = await browser.open('/sinks/billing')
    expect(one).toContain('Dead letters: 2')
    expect(one).toContain('event-1')
    expect(one).not.toContain('<b>gone</b>')
  })

  it('list dead letters page by page', async () => {
    makeFailingSink(twin, 60, 'gone')
    const { page } = await browser.open('/sinks/billing')
    const next = /href="[^"]*\/console([^"]*)" rel="next"/.exec(page)?.[1] ?? ''
    const { page: second } = await browser.open(next)
    expect([page.includes('event-50<'), page.includes('event-51<')]).toEqual([true, false])
    expect([second.includes('event-51<'), second.includes('event-60<')]).toEqual([true, true])
  })
})

describe('a command for a sink', () => {
  beforeEach(() => makeFailingSink(twin, 2, 'gone'))

  it('tries it now', async () => {
    expect((await command('retry')).headers.get('location')).toMatch(/\/console\/sinks\/billing$/)
    expect(await state()).toMatchObject([{ retryAt: null }])
    expect((await changes())[0]).toBe('RETRY_EVENT_SINK')
  })

  it('sends dead letters again, or discards them after a confirmation', async () => {
    expect((await command('replay-dead-letters')).status).toBe(303)
    expect((await command('discard')).status).toBe(403)
    expect(await state()).toMatchObject([{ deadLetters: 2, behind: true }])
    expect((await command('discard', { confirmed: 'yes' })).status).toBe(303)
    expect(await state()).toMatchObject([{ deadLetters: 0 }])
    expect((await changes()).slice(0, 2)).toEqual(['DISCARD_DEAD_LETTERS', 'REPLAY_EVENTS'])
  })

  it('replays events after a position, which it checks', async () => {
    const wrong = await command('replay', { confirmed: 'yes', after: 'yesterday' })
    expect([wrong.status, wrong.page]).toEqual([400, expect.stringContaining('The position must be a whole number')])
    expect((await command('replay', { confirmed: 'yes', after: '999' })).page).toContain('CURSOR_UNKNOWN')
    expect((await command('replay', { confirmed: 'yes', after: ' 0 ' })).status).toBe(303)
    expect((await changes())[0]).toBe('REPLAY_EVENTS')
  })

  it('forgets it, and returns to the list', async () => {
    const { headers } = await command('forget', { confirmed: 'yes' })
    expect(headers.get('location')).toMatch(/\/console\/sinks$/)
    expect(await state()).toEqual([])
  })

  it('needs the role operator for all instances', async () => {
    const reading = await Browser.limited(twin, { roles: ['read'] })
    expect((await reading.open('/sinks/billing')).page).not.toContain('Try now')
    expect((await command('retry', {}, reading)).status).toBe(403)
    const instance = await twin.instance()
    const limited = await Browser.limited(twin, { roles: ['read', 'operator'], instances: [instance] })
    expect((await limited.open('/sinks')).status).toBe(403)
    expect((await limited.open('')).page).not.toContain('/sinks')
    expect((await command('retry', {}, limited)).status).toBe(403)
  })

  it('is refused from another site', async () => {
    expect((await browser.send('/sinks/billing/retry', { formToken: 'other' })).status).toBe(403)
    expect(await state()).toMatchObject([{ retryAt: twin.now + 3 * MINUTE }])
  })
})
