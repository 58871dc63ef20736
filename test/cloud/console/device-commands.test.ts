// Commands of the console for several devices: chosen in the list, confirmed with their number, one result for each.
import { afterEach, beforeEach, describe, expect, it } from 'vitest'
import { type Twin, openTwin, pick } from '../harness.ts'
import { Browser } from './browse.ts'
import { HOSTILE, type Scene, furnish } from './scene.ts'

let twin: Twin
let scene: Scene
let browser: Browser
let ids: readonly string[]

beforeEach(async () => {
  twin = await openTwin()
  scene = await furnish(twin, true)
  browser = await Browser.signedIn(twin)
  const { body } = await twin.call('GET', '/edge/api/v1/devices')
  ids = (pick(body, 'devices') as readonly { id: string }[]).map(({ id }) => id)
})
afterEach(() => twin[Symbol.asyncDispose]())

const suspended = async (): Promise<readonly string[]> => {
  const { body } = await twin.call('GET', '/edge/api/v1/devices')
  const devices = pick(body, 'devices') as readonly { id: string; suspension: object | null }[]
  return devices.filter(({ suspension }) => suspension !== null).map(({ id }) => id)
}

async function command(name: string, devices: readonly string[], by = browser) {
  const path = `/devices/command?command=${name}`
  const formToken = await by.formToken()
  return by.send(path, { formToken, confirmed: 'yes', devices: devices.join(' ') })
}

describe('the choice', () => {
  it('is confirmed with the number of devices and their ids', async () => {
    const [first = '', second = ''] = ids
    const { page } = await browser.open(`/devices/command?command=lock&of=selected&device=${first}&device=${second}`)
    expect(page).toContain('<h1>Lock: 2 devices</h1>')
    expect(page).toContain(`name="devices" value="${first} ${second}"`)
    expect(await suspended()).toEqual([])
  })

  it('can be all devices that the list finds', async () => {
    const { page } = await browser.open('/devices/command?command=lock&of=all&search=Press')
    expect(page).toContain('<h1>Lock: 2 devices</h1>')
    expect((await browser.open('/devices/command?command=lock&of=all')).page).toContain(`Lock: ${ids.length} devices`)
  })

  it('names the device if it is only one', async () => {
    const { page } = await browser.open(`/devices/command?command=lock&device=${scene.device.id}`)
    expect(page).toContain('<h1>Lock: Printer</h1>')
    expect(page).toContain('Yes, lock for Printer')
  })

  it.each([
    [null, ['lock', 'release', 'rotate-key', 'terminate', 'revoke']],
    ['lock', ['unlock', 'release', 'rotate-key', 'terminate', 'revoke']],
    ['terminate', ['release', 'rotate-key', 'revoke']],
    ['revoke', []],
  ])('of a device after %s has the commands that are possible', async (name, offered) => {
    if (name !== null) await command(name, [scene.device.id])
    const { page } = await browser.open(`/devices/${scene.device.id}`)
    expect([...page.matchAll(/\/devices\/command\?command=([a-z-]+)&/g)].map(([, each]) => each)).toEqual(offered)
  })

  it('asks for devices when none is selected', async () => {
    const { status, page } = await browser.open('/devices/command?command=lock&of=selected')
    expect([status, page.includes('No device is selected')]).toEqual([200, true])
  })

  it('needs a known command', async () => {
    expect((await browser.open('/devices/command?command=explode')).status).toBe(404)
  })
})

describe('a command for several devices', () => {
  it('is carried out for each, as the administrator', async () => {
    const { status, page } = await command('lock', ids)
    expect(status).toBe(200)
    expect(page).toContain(`${ids.length} done, 0 refused.`)
    expect(await suspended()).toEqual(ids)
    const { body } = await twin.call('GET', '/edge/api/v1/audit?action=LOCK_DEVICE')
    expect(pick(body, 'records', 0, 'by', 'kind')).toBe('ADMINISTRATOR')
  })

  it('names each device in its result', async () => {
    const { page } = await command('lock', [scene.device.id])
    expect(page).toContain('<h1>Lock: Printer</h1>')
    expect(page).toMatch(/<li><a [^>]*>Printer<\/a>[^]*?done/)
  })

  it('shows the reason for each device that refuses it, and continues with the next', async () => {
    const [revoked = '', ...others] = ids
    expect((await command('revoke', [revoked])).page).toContain('1 done, 0 refused.')
    const { page } = await command('lock', [revoked, 'no device', ...others])
    expect(page).toContain(`${others.length} done,`)
    expect(page).toContain('the device gets no more commands. (CONFLICT)')
    expect(page).toContain('(NOT_FOUND)')
    expect(await suspended()).toEqual(others)
  })

  it('exists for every command of the API', async () => {
    for (const name of ['lock', 'unlock', 'release', 'rotate-key', 'terminate', 'revoke']) {
      expect([name, (await command(name, [scene.device.id])).page.includes('1 done')]).toEqual([name, true])
    }
  })

  it('needs the confirmation, the token of the form and a limited number', async () => {
    const formToken = await browser.formToken()
    const devices = ids.join(' ')
    for (const form of [
      { confirmed: 'yes', devices },
      { formToken, devices },
      { formToken, confirmed: 'yes', devices: Array.from({ length: 1_001 }, () => 'x').join(' ') },
    ]) {
      expect((await browser.send('/devices/command?command=lock', form)).status).toBe(403)
    }
    expect(await suspended()).toEqual([])
  })

  it('contains no markup of a name', async () => {
    const { page } = await browser.open('/devices/command?command=lock&of=all')
    expect(page).toContain('&lt;img')
    expect(page).not.toContain(HOSTILE)
  })
})

describe('an administrator', () => {
  it('without the role operator gets no choice, and is refused', async () => {
    const reader = await Browser.limited(twin, { roles: ['read'] })
    const { page } = await reader.open('/devices')
    expect(page).not.toContain('type="checkbox"')
    const refused = await command('lock', ids, reader)
    expect([refused.status, refused.page.includes('ROLE_MISSING')]).toEqual([403, true])
    expect(await suspended()).toEqual([])
  })

  it('of another instance is refused for each device', async () => {
    const other = await Browser.limited(twin, {
      roles: ['operator'],
      instances: [await twin.instance('another customer')],
    })
    const { page } = await command('lock', [scene.device.id], other)
    expect(page).toContain('(INSTANCE_NOT_IN_SCOPE)')
    expect(page).toContain('0 done, 1 refused.')
    expect(await suspended()).toEqual([])
  })
})
