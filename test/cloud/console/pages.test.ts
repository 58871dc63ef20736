import { afterEach, beforeEach, describe, expect, it } from 'vitest'
import { join } from 'node:path'
import Sqlite from 'better-sqlite3'
import { USAGE_ROW_POSITIONS } from '../../../src/cloud/storage/records.ts'
import { actionAccount } from '../../../src/core/accounts/account.ts'
import { HOUR, START, type Twin, openTwin, pick, text } from '../harness.ts'
import { newDeviceKeys, topUpRequest } from '../sync/test-device.ts'
import { Browser, limitedToken } from './browse.ts'
import { multiplyScene } from './multiply.ts'
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

it('no page contains the markup of a name', async () => {
  const paths = [
    '',
    '/devices',
    `/devices/${scene.device.id}`,
    '/line-items',
    '/rules',
    '/usage',
    '/sessions',
    '/audit',
  ]
  for (const path of paths) {
    const { status, page } = await browser.open(path)
    expect([path, status]).toEqual([path, 200])
    expect([path, page.includes('<img')]).toEqual([path, false])
  }
  expect((await browser.open('')).page).toContain('&lt;img src=x onerror=alert(1)&gt;&quot;&#39;&amp;')
})

it('stays on the page when another instance is chosen', async () => {
  const other = await twin.instance('another customer')
  for (const [path, to] of [
    ['', ''],
    ['/usage', '/usage'],
    [`/devices/${scene.device.id}`, '/devices'],
    [`/line-items/edit?instance=${scene.instanceId}&lineItem=PRINT-2026`, '/line-items'],
  ] as const) {
    const { page } = await browser.open(path)
    expect([path, page]).toEqual([
      path,
      expect.stringContaining(`<form class="filter" method="get" action="/dynamicmonetization/console${to}">`),
    ])
    expect((await browser.open(`${to}?instance=${other}`)).status).toBe(200)
  }
})

it('has each of many instances, and shows which is chosen', async () => {
  let last = ''
  for (let n = 0; n < 55; n += 1) last = await twin.instance(`customer ${n}`)
  const { page } = await browser.open('')
  const next = /href="[^"]*\/console(\?[^"]*)" rel="next"/.exec(page)?.[1] ?? ''
  expect((await browser.open(next)).page).toContain(last)
  expect((await browser.open(next)).page).toContain('rel="prev"')
  const chosen = await browser.open(`/usage?instance=${last}`)
  expect(chosen.page).toMatch(new RegExp(`<option value="${last}" selected`))
})

it('finds a search text with spaces around it', async () => {
  await twin.access(scene.instanceId, { ' Drill ': 1 }, ' Bo ')
  for (const [path, found] of [
    ['/usage?requester=+Bo+', 'user  Bo '],
    ['/usage?item=+Drill+', 'Drill '],
    ['/devices?search=+Press+1+', 'Press 1</a>'],
    ['/devices?labels=+site%3Dberlin+', 'Press 1</a>'],
    ['/devices.csv?search=+Press+1', 'Press 1'],
    ['/usage?requester=+KimLee+', 'user KimLee'],
    ['/usage?item=+Weld+', 'Weld'],
    ['/usage?device=+Printer+', 'device Printer'],
    ['/audit?device=+Printer+', 'device Printer'],
  ] as const) {
    const { status, page } = await browser.open(path)
    expect([path, status, page.includes(found)]).toEqual([path, 200, true])
  }
})

it('says in the list that a device that never attached has no rules yet', async () => {
  const rules = async (search: string) =>
    /none yet|older than the newest|up to date/.exec((await browser.open(`/devices?search=${search}`)).page)?.[0]
  expect([await rules('Press'), await rules('Printer')]).toEqual(['none yet', 'older than the newest'])
})

it('marks the devices that the filter finds overdue, also in the export', async () => {
  const states = async (contact: string) =>
    (await browser.open(`/devices?contact=${contact}`)).page.match(/active(, overdue)?/g) ?? []
  expect([await states('OVERDUE'), await states('CURRENT')]).toEqual([['active, overdue'], []])
  const [head = '', line = ''] = (await browser.open('/devices.csv?contact=OVERDUE')).page.split('\r\n')
  expect(line.split(',')[head.split(',').indexOf('OVERDUE')]).toBe('yes')
  await scene.device.device.sync()
  expect([await states('OVERDUE'), await states('CURRENT')]).toEqual([[], ['active']])
})

it('shows the names of instances on the page of a device', async () => {
  const { page } = await browser.open(`/devices/${scene.device.id}`)
  expect(page).toMatch(new RegExp(`instance &lt;img [^<]*<code>${scene.instanceId}</code>`))
})

describe('a tried request', () => {
  const attempt = (fields: Readonly<Record<string, string>>) =>
    browser.open(`/try?${new URLSearchParams({ type: 'user', value: 'Ada', count: '2', ...fields }).toString()}`)

  it('shows the action that allows it and its cost, and charges nothing', async () => {
    const before = await twin.usage(scene.instanceId)
    const { page } = await attempt({ item: 'Print', dictionary: 'department=sales' })
    expect(page).toContain('Granted for 2 tokens')
    expect(page).toContain('action Sales may print')
    expect((await attempt({ item: 'Print' })).page).toContain('action Everyone else')
    expect(await twin.usage(scene.instanceId)).toEqual(before)
  })

  it('shows the check that refuses it', async () => {
    const { page } = await attempt({ item: 'Weld' })
    expect(page).toContain('in no rate table in effect')
    expect((await attempt({ item: 'Laser cut', count: '9000000000' })).page).toMatch(/Granted|Refused/)
  })

  it('decides like a real request', async () => {
    for (const [item, count] of [
      ['Print', '1'],
      ['Print', '4000'],
      ['Scan', '3'],
      ['Weld', '1'],
    ] as const) {
      const { page } = await attempt({ item, count })
      const { body } = await twin.access(scene.instanceId, { [item]: Number(count) }, 'Ada')
      const isGranted = pick(body, 'requestedItems', 0, 'status', 'code') === '1001'
      expect([item, count, page.includes('Granted')]).toEqual([item, count, isGranted])
    }
  })

  it('shows the problem of the form', async () => {
    for (const [change, problem] of [
      [{ count: '-1' }, 'Count: must be greater than 0'],
      [{ count: '0x10' }, 'Count: must be a number in digits, such as 1000'],
      [{ count: '9007199254740993' }, 'Count: has too many digits. The nearest number is 9007199254740992'],
      [{ variables: 'x=many' }, 'Variables of formulas, x: must be a number in digits'],
      [
        { variables: 'x=0.12345678901234567891' },
        'Variables of formulas, x: has too many digits. The nearest number is 0.12345678901234568',
      ],
      [{ dictionary: 'site=berlin\ndepartment sales' }, 'Dictionary: the line “department sales” is not name=value'],
      [{ variables: '=1' }, 'Variables of formulas: the line “=1” is not name=value'],
    ] as const) {
      const { page } = await attempt({ item: 'Print', count: '1', ...change })
      expect(/role="alert">([^<]*)/.exec(page)?.[1]).toContain(problem)
      expect(page).not.toContain('role="status"')
    }
  })
})

describe('a command for a session', () => {
  const lock = (): string => `/sessions/${scene.sessionId}/lock`
  const stateOf = async () => (await twin.read((reader) => reader.sessions.get(scene.sessionId)))?.state

  it('needs the token of the form and the confirmation', async () => {
    const formToken = await browser.formToken(lock())
    for (const form of [
      { confirmed: 'yes' },
      { formToken: 'guessed', confirmed: 'yes' },
      { formToken },
      { formToken, confirmed: 'no' },
    ]) {
      const { status } = await browser.send(lock(), form)
      expect([form, status]).toEqual([form, 403])
    }
    const foreign = await browser.send(lock(), { formToken, confirmed: 'yes' }, { 'sec-fetch-site': 'same-site' })
    expect(foreign.status).toBe(403)
    expect(await stateOf()).toBe('IDLE')
  })

  it('is not accepted with the form of another sign-in', async () => {
    twin.now += 1_000
    const other = await Browser.signedIn(twin)
    const { status } = await browser.send(lock(), { formToken: await other.formToken(lock()), confirmed: 'yes' })
    expect(status).toBe(403)
  })

  it('locks, unlocks and ends it, as the administrator', async () => {
    for (const [name, state] of [
      ['lock', 'LOCKED'],
      ['unlock', 'IDLE'],
      ['end', 'TERMINATED'],
    ] as const) {
      const path = `/sessions/${scene.sessionId}/${name}`
      const { status, headers } = await browser.send(path, {
        formToken: await browser.formToken(path),
        confirmed: 'yes',
      })
      expect([status, headers.get('location')]).toEqual([303, '/dynamicmonetization/console/sessions'])
      expect([name, await stateOf()]).toEqual([name, state])
    }
    const { body } = await twin.call('GET', '/edge/api/v1/audit?action=TERMINATE_SESSION')
    expect(pick(body, 'records', 0, 'by', 'kind')).toBe('ADMINISTRATOR')
  })

  it('names the device whose application opened the session, and is on the page of the device', async () => {
    const { id } = scene.device
    expect((await browser.open('/sessions')).page).toContain('a client of the cloud')
    const database = new Sqlite(join(twin.settings.store.path, 'twin.db'))
    database.prepare('UPDATE sessions SET kept_by = ? WHERE id = ?').run(id, scene.sessionId)
    database.close()
    const { page } = await browser.open('/sessions')
    expect(page).toContain(`/devices/${id}`)
    expect(page).not.toContain('a client of the cloud')
    expect((await browser.open(`/devices/${id}`)).page).toContain(lock())
  })

  it('needs the role operator, and is offered only with it', async () => {
    const reader = await Browser.limited(twin, { roles: ['read'] })
    expect((await reader.open('/sessions')).page).not.toContain(lock())
    const { status, page } = await reader.send(lock(), { formToken: await reader.formToken(lock()), confirmed: 'yes' })
    expect(status).toBe(403)
    expect(page).toContain('ROLE_MISSING')
  })
})

describe('labels of a device', () => {
  const path = (): string => `/devices/${scene.device.id}/labels`
  const save = async (labels: string, by = browser) => by.send(path(), { formToken: await by.formToken(''), labels })
  const saved = async () => (await twin.read((reader) => reader.edge.devices.get(scene.device.id)))?.labels

  it('are saved as the form has them, and find the device', async () => {
    const { status, headers } = await save('site=bremen line=3')
    expect([status, headers.get('location')]).toEqual([303, `/dynamicmonetization/console/devices/${scene.device.id}`])
    await save('site=bonn')
    expect(await saved()).toEqual({ site: 'bonn' })
    const { page } = await browser.open('/devices?labels=site%3Dbonn')
    expect(page).toContain(scene.device.id)
    expect(page).toContain('name="labels" value="site=bonn"')
    expect((await browser.open('/devices?labels=site%3Dbremen')).page).not.toContain(scene.device.id)
    expect((await browser.open('/devices/command?command=lock&of=all&labels=site%3Dbonn')).page).toContain(
      'Lock: Printer',
    )
  })

  it('are refused with their code if they are malformed', async () => {
    const { status, page } = await save('no label')
    expect([status, page.includes('(LABEL_INVALID)')]).toEqual([400, true])
    expect(page).toContain('name="labels" value="no label"')
    expect(page).toContain(`action="/dynamicmonetization/console/devices/${scene.device.id}/labels"`)
    expect(page).toContain('aria-label="Pages"')
    const list = await browser.open('/devices?labels=no&search=Press')
    expect([list.status, list.page.includes('(LABEL_INVALID)')]).toEqual([400, true])
    expect(list.page).toContain('name="labels" value="no"')
    expect(list.page).toContain('name="search" value="Press"')
    expect(list.page).toContain('aria-label="Pages"')
    expect((await browser.send(path(), { labels: 'a=b' })).status).toBe(403)
    expect((await save('a=b', await Browser.limited(twin, { roles: ['read'] }))).status).toBe(403)
    const other = await Browser.limited(twin, {
      roles: ['operator'],
      instances: [await twin.instance('another customer')],
    })
    expect((await save('a=b', other)).status).toBe(403)
    expect(await saved()).toEqual({ site: 'berlin', line: '3' })
  })
})

describe('a limited administrator', () => {
  it('opens no device, session, audit or usage of another instance', async () => {
    const own = await twin.instance('another customer')
    const limited = await Browser.limited(twin, { roles: ['read', 'operator'], instances: [own] })
    for (const path of [
      `/devices/${scene.device.id}`,
      `/sessions/${scene.sessionId}/lock`,
      `/audit?device=${scene.device.id}`,
      `/usage.csv?instance=${scene.instanceId}`,
    ]) {
      const { status } = await limited.open(path)
      expect([path, status]).toEqual([path, 403])
    }
    const formToken = await limited.formToken('')
    const command = await limited.send(`/sessions/${scene.sessionId}/lock`, { formToken, confirmed: 'yes' })
    expect(command.status).toBe(403)
    for (const path of ['/devices', '/usage', '/usage.csv', '/sessions', '/audit']) {
      const { page } = await limited.open(path)
      expect([path, page.includes(scene.device.id), page.includes('Print')]).toEqual([path, false, false])
    }
  })
})

describe('a device that also serves an instance of others', () => {
  it('is on no page, export or list of an administrator who may not open it', async () => {
    const own = await twin.instance('another customer')
    const join = async (name: string, instanceIds: readonly string[]): Promise<string> => {
      const body = { instanceIds, name, labels: { plant: 'bonn' } }
      const { body: issued } = await twin.call('POST', '/edge/api/v1/enrollment-tokens', { body })
      const { jwk } = await newDeviceKeys()
      const enrolled = await twin.call('POST', '/edge/api/v1/enrollments', {
        ...{ token: text(issued, 'token'), body: { publicKey: jwk } },
      })
      return text(enrolled.body, 'deviceId')
    }
    const shared = await join('Shared', [own, scene.instanceId])
    const owned = await join('Owned', [own])
    const limits = { roles: ['read', 'operator'], instances: [own] }
    const limited = await Browser.limited(twin, limits)
    expect((await limited.open(`/devices/${shared}`)).status).toBe(403)
    for (const path of [
      '/devices',
      '/devices?labels=plant%3Dbonn',
      '/devices?contact=NEVER',
      '/devices.csv',
      '/devices.json?search=',
      '/devices/command?command=lock&of=all',
    ]) {
      const { page } = await limited.open(path)
      expect([path, page.includes('Shared'), page.includes(shared), page.includes(owned.slice(0, 8))]).toEqual([
        ...[path, false, false, true],
      ])
    }
    expect((await limited.open('')).page).toMatch(/contact=NEVER[^]*?<dd>1<\/dd>/)
    expect((await browser.open(`/devices.csv?instance=${own}`)).page).toContain(shared)
    const token = await limitedToken(twin, limits)
    const { body: listed } = await twin.call('GET', `/edge/api/v1/devices?instanceId=${own}`, { token })
    expect(pick(listed, 'devices')).toMatchObject([{ id: owned }])
  })
})

it('lists the keys of a device', async () => {
  const { page } = await browser.open(`/devices/${scene.device.id}`)
  expect(page).toMatch(/Keys, newest first[^]*current/)
})

it.each(['/nothing', '/devices/command/none', '/sign-out'])('shows a page for the unknown address %s', async (path) => {
  const { status, page } = await browser.open(path)
  expect(status).toBe(404)
  expect(page).toContain('The console has no such page. (NOT_FOUND)')
  expect(page).toContain('>Overview</a>')
})

it('has the menu on the page of an error, with the place in it', async () => {
  const { status, page } = await browser.open('/devices/nope')
  expect([status, page]).toEqual([404, expect.stringContaining('This did not work') as string])
  expect(page).toMatch(/<nav aria-label="Pages">[^]*\/devices" aria-current="page">Devices<\/a>[^]*>Audit<\/a>/)
})

it('exports the usage records as the service does', async () => {
  const { page, headers } = await browser.open('/usage.csv')
  const { text: exported } = await twin.call('GET', '/provisioning/api/v1.1/usage?format=csv')
  expect(headers.get('content-type')).toContain('text/csv')
  expect(page).toBe(exported)
})

describe('the export of devices', () => {
  it('has the devices that the list finds, as CSV that no spreadsheet takes for a formula', async () => {
    const body = { instanceIds: [scene.instanceId], name: '=1+1"', labels: { site: 'bonn' } }
    const { body: issued } = await twin.call('POST', '/edge/api/v1/enrollment-tokens', { body })
    const { jwk } = await newDeviceKeys()
    await twin.call('POST', '/edge/api/v1/enrollments', { token: text(issued, 'token'), body: { publicKey: jwk } })
    const { page, headers } = await browser.open('/devices.csv?labels=site%3Dbonn')
    expect(headers.get('content-type')).toContain('text/csv')
    const [head, line, ...rest] = page.split('\r\n')
    expect(head).toMatch(/^ID,NAME,LABELS,INSTANCES,STATE,/)
    expect(line).toMatch(/^[0-9a-f-]{36},"'=1\+1""",site=bonn,/)
    expect(rest).toEqual([''])
    expect((await browser.open('/devices.csv')).page.trimEnd().split('\r\n')).toHaveLength(1 + 5)
  })

  it('has their states as JSON', async () => {
    const { page, headers } = await browser.open('/devices.json?search=Press')
    expect(headers.get('content-type')).toContain('application/json')
    const devices = JSON.parse(page) as readonly Readonly<Record<string, unknown>>[]
    expect(devices.map(({ name, labels }) => [name, labels])).toEqual([
      ['Press 1', { line: '2', site: 'berlin' }],
      ['Press 2', { line: '2', site: 'berlin' }],
    ])
    expect(JSON.parse((await browser.open('/devices.json?search=none')).page)).toEqual([])
  })

  it.each(['csv', 'json'])(
    'refuses a search for NUL as %s with an error, not with a response that breaks off',
    async (format) => {
      const { status, page } = await browser.open(`/devices.${format}?search=%00`)
      expect(status).toBe(400)
      expect(page).toContain('NUL')
    },
  )

  it('has all devices of a long list, once', async () => {
    await twin.stop()
    const database = new Sqlite(join(twin.settings.store.path, 'twin.db'))
    multiplyScene(database, scene.instanceId, { devices: 250, records: 1 })
    database.close()
    await twin.start()
    const again = await Browser.signedIn(twin)
    for (const filter of ['', '&labels=site%3Dberlin', '&contact=NEVER']) {
      const { page } = await again.open(`/devices.json?instance=${scene.instanceId}${filter}`)
      const ids = (JSON.parse(page) as readonly { readonly id: string }[]).map(({ id }) => id)
      expect([filter, ids.length > 240, new Set(ids).size]).toEqual([filter, true, ids.length])
    }
  })
})

it('shows the session of usage on a device', async () => {
  const { device } = scene.device
  const session = { id: 'f3b9d6f0-2f4b-4d5e-8a3c-6c1d2e3f4a5b', event: 'REFUSED' } as const
  const item = { item: 'Print', version: '', count: '1', outcome: 'GRANT_EXHAUSTED', total: '0', parts: [] }
  device.record({ kind: 'access', items: [item], postings: [], session })
  await device.sync()
  const { page } = await browser.open('/usage')
  expect(page).toMatch(/device Printer<\/a>\s+session f3b9d6f0/)
})

describe('usage in a time', () => {
  const hour = (n: number): string => new Date(START + n * HOUR).toISOString().slice(0, 16)

  it('is added up by hour or day, and exported', async () => {
    const range = `from=${hour(2)}&to=${hour(4)}`
    const { page } = await browser.open(`/usage?${range}`)
    const beginningOf = (n: number): string => `${hour(n).slice(0, 13).replace('T', ' ')}:00</th>`
    expect([2, 3, 4].map((n) => page.includes(beginningOf(n)))).toEqual([true, true, false])
    expect(page).toMatch(/\b4 records of this time: 27.5 tokens/)
    expect((await browser.open(`/usage?${range}&by=day`)).page).toContain(`${hour(0).slice(0, 10)}</th>`)
    const exported = await browser.open(`/usage.csv?${range}`)
    const query = `format=csv&from=${START + 2 * HOUR}&to=${START + 4 * HOUR}`
    expect(exported.page).toBe((await twin.call('GET', `/provisioning/api/v1.1/usage?${query}`)).text)
    expect(exported.page.trimEnd().split('\r\n')).toHaveLength(1 + 4)
  })

  it('is added up by customer, line item, item or requester, with the largest first', async () => {
    const rows = async (by: string) => {
      const { page } = await browser.open(`/usage?from=${hour(0)}&to=${hour(8)}&by=${by}`)
      const [, table = ''] = /<section[^>]*aria-labelledby="totals">([^]*?)<\/section>/.exec(page) ?? []
      return [...table.matchAll(/<tr[^>]*>([^]*?)<\/tr>/g)].map(([, row = '']) =>
        [...row.matchAll(/<t[hd][^>]*>([^]*?)<\/t[hd]>/g)].map(([, cell = '']) =>
          cell.replaceAll(/<[^>]*>/g, '').trim(),
        ),
      )
    }
    expect(await rows('line-item')).toEqual([
      ['Line item', 'Records', 'Refusals', 'Tokens'],
      ['PRINT-2026', '8', '0', '329'],
      ['LASER-2026', '1', '0', '100'],
      ['SCAN-2025', '7', '0', '100'],
      ['none', '1', '1', '0'],
    ])
    expect((await rows('item'))[1]).toEqual(['Print', '8', '0', '415'])
    expect((await rows('requester'))[2]).toEqual(['user KimLee', '2', '1', '100'])
    expect(await rows('account')).toHaveLength(1 + 1)
  })

  it('links the present and the last month', async () => {
    const { page } = await browser.open('/usage')
    const months = [...page.matchAll(/href="[^"]*\/usage\?(from=[^"]*by=line-item)"\s*>([^<]*)</g)]
    expect(months.map(([, query = '', month]) => [decodeURIComponent(query.replaceAll('&amp;', '&')), month])).toEqual([
      ['from=2026-05-01T00:00&to=2026-06-01T00:00&by=line-item', '2026-05'],
      ['from=2026-04-01T00:00&to=2026-05-01T00:00&by=line-item', '2026-04'],
    ])
  })

  it('names the command that adds up a time with more records than the page reads', async () => {
    const range = `from=${hour(0)}&to=${hour(8)}`
    expect((await browser.open(`/usage?${range}`)).page).not.toContain('tallygate usage totals')
    await twin.stop()
    const database = new Sqlite(join(twin.settings.store.path, 'twin.db'))
    multiplyScene(database, scene.instanceId, { devices: 1, records: 6_000 })
    database.close()
    await twin.start()
    const again = await Browser.signedIn(twin)
    const { page } = await again.open(`/usage?instance=${scene.instanceId}&${range}`)
    const command = `tallygate usage totals --instance ${scene.instanceId} --since ${hour(0)}:00.000Z --until ${hour(8)}:00.000Z`
    expect(page).toContain(command)
  })

  it('links older records also among the long positions after a restore', async () => {
    await twin.stop()
    const database = new Sqlite(join(twin.settings.store.path, 'twin.db'))
    database
      .prepare("UPDATE sqlite_sequence SET seq = ? WHERE name = 'usage'")
      .run((4n * 10n ** 18n) / USAGE_ROW_POSITIONS)
    database.close()
    await twin.start()
    for (let n = 0; n < 60; n += 1) await twin.access(scene.instanceId, { Print: 1 })
    const again = await Browser.signedIn(twin)
    const { page } = await again.open('/usage')
    const href = /href="[^"]*console(\/usage\?[^"]*upTo=4\d{18})"/.exec(page)?.[1]?.replaceAll('&amp;', '&') ?? ''
    const older = await again.open(href)
    expect(page).toContain('upTo=')
    expect(older.page).not.toContain('upTo=')
  })

  it('names that command on the pages of older records, too, whose totals leave out the newer ones', async () => {
    for (let n = 0; n < 60; n += 1) await twin.access(scene.instanceId, { Print: 1 })
    const range = `from=${hour(0)}`
    const { page } = await browser.open(`/usage?${range}`)
    expect(page).not.toContain('tallygate usage totals')
    const href = /href="[^"]*console(\/usage\?[^"]*upTo=[^"]*)"/.exec(page)?.[1]?.replaceAll('&amp;', '&') ?? ''
    const older = await browser.open(href)
    expect(older.page).toMatch(/older records of this time[^:]*:/)
    expect(older.page).toMatch(/Totals of all:\s+<code>tallygate usage totals/)
    const search = await browser.open(`${href}&item=Print`)
    expect(search.page).toMatch(/Totals of all records, without the search:\s+<code>tallygate usage totals/)
  })

  it('must be a time', async () => {
    for (const query of ['from=yesterday&item=Print', `from=${hour(2)}&to=${hour(2)}&item=Print`]) {
      const { status, page } = await browser.open(`/usage?${query}`)
      expect([query, status, page.includes('(BAD_REQUEST)')]).toEqual([query, 400, true])
      expect(page).toContain('name="item" value="Print"')
      expect(page).toContain('aria-label="Pages"')
    }
  })
})

it('keeps the text of a filter unchanged, also invisible characters', async () => {
  const text = 'Press\u200b"<b>'
  const query = (name: string): string => new URLSearchParams({ [name]: text }).toString()
  for (const [path, name] of [
    ['/devices', 'search'],
    ['/usage', 'requester'],
    ['/audit', 'device'],
    ['/try', 'value'],
  ] as const) {
    const { page } = await browser.open(`${path}?${query(name)}`)
    expect(page).toContain(`name="${name}" value="Press\u200b&quot;&lt;b&gt;"`)
  }
})

it('shows names with joiners as they are written, and other characters that cannot be seen by their codes', async () => {
  for (const [name, shown] of [
    ['می\u200cخواهم', 'می\u200cخواهم'],
    ['\u{1f469}\u200d\u{1f527}', '\u{1f469}\u200d\u{1f527}'],
    ['An\u200bna', 'An\\u{200b}na'],
    ['An\u200dna', 'An\\u{200d}na'],
    ['Anna\u202e', 'Anna\\u{202e}'],
  ] as const) {
    const { page } = await browser.open(`/devices?${new URLSearchParams({ search: name }).toString()}`)
    expect(page).toContain(`begins with “${shown}”`)
  }
})

it('finds line items and their rules by a part of the id', async () => {
  expect((await browser.open('/line-items')).page).not.toContain('type="search"')
  for (let n = 0; n < 60; n += 1) await twin.lineItem(scene.instanceId, { activationId: `MANY-${n}` })
  for (const path of ['/line-items', '/rules']) {
    expect((await browser.open(path)).page).toContain('type="search"')
    const { page } = await browser.open(`${path}?search=+laser`)
    expect([path, page.includes('LASER-2026'), page.includes('PRINT-2026')]).toEqual([path, true, false])
    const found = await browser.open(`${path}?search=many`)
    expect(found.page).toMatch(/href="[^"]*search=many[^"]*" rel="next"/)
  }
})

it('shows which rate table of a series is in effect', async () => {
  const create = async (version: string, effectiveFrom: number): Promise<void> => {
    const body = { series: 'laser', version, effectiveFrom, items: [{ name: 'Engrave', rate: 4 }] }
    await twin.call('POST', '/provisioning/api/v1.1/rate-tables', { body })
  }
  await create('2', START)
  await create('2b', START)
  await create('3', twin.now + HOUR)
  const { page } = await browser.open('/rate-tables')
  const states = [
    ...page.matchAll(
      /laser<\/a>[^]*?data-label="Version"[^]*?<div>(.*?)<\/div>[^]*?data-label="State"[^]*?<div>(.*?)</g,
    ),
  ]
  expect(states.map(([, version, state]) => [version, state])).toEqual([
    ['3', 'not yet in effect'],
    ['2b', 'in effect'],
    ['2', 'replaced'],
    ['1', 'replaced'],
  ])
})

it('filters usage records and adds them up', async () => {
  const { page } = await browser.open('/usage?requester=KimLee&outcome=refused')
  expect(page).toContain('refused: in no rate table in effect')
  expect(page).not.toContain('Laser cut')
  expect(page).toMatch(/1 record found: 0 tokens, 1 refusal/)
})

it('leads from a device to its refused requests, with the ids that explain needs', async () => {
  const { device } = scene.device
  const line = scene.device.line('PRINT-2026')
  device.clock = { now: twin.now, earliest: twin.now, latest: twin.now }
  expect(device.charge({ lineItemId: 'PRINT-2026', accounts: [line], amount: 9_000_000_000n })).toBe(false)
  await device.sync()
  const { page } = await browser.open(`/devices/${scene.device.id}`)
  const href = /href="[^"]*console(\/usage\?[^"]*outcome=refused)"/.exec(page)?.[1]?.replaceAll('&amp;', '&') ?? ''
  const refused = await browser.open(href)
  expect(refused.page).toMatch(/refused: [^<]*<br \/><code>[\da-f-]{36}<\/code>/)
  expect(refused.page).toContain('tallygate explain')
})

it('shows the name of an action with the start of its id on the page of a device', async () => {
  const path = `/api/v1.1/instances/${scene.instanceId}/line-items/PRINT-2026/actions`
  const actionId = text((await twin.call('GET', path)).body, 0, 'id')
  const { device } = scene.device
  device.clock = { now: twin.now, earliest: twin.now, latest: twin.now }
  await device.sync([topUpRequest(actionAccount(scene.instanceId, 'PRINT-2026', actionId), 5_000_000n)])
  const { page } = await browser.open(`/devices/${scene.device.id}`)
  expect(page).toContain(`PRINT-2026, action Sales may print (${actionId.slice(0, 8)})`)
})

it('names the first steps where there is nothing yet', async () => {
  await using empty = await openTwin()
  const first = await Browser.signedIn(empty)
  for (const path of ['', '/line-items', '/rules']) {
    const { page } = await first.open(path)
    expect([path, page]).toEqual([path, expect.stringContaining('tallygate instances set')])
    expect(page).not.toContain('Choose an instance')
  }
  expect((await first.open('/devices')).page).toContain('tallygate devices enrollment-token')
  expect((await first.open('/devices?search=x')).page).not.toContain('tallygate devices enrollment-token')
})

it('names no first steps after the last page of a list', async () => {
  for (const path of ['?from=50', '/devices?from=50']) {
    const { status, page } = await browser.open(path)
    expect([path, status, /tallygate (instances set|devices enrollment-token)/.exec(page)]).toEqual([path, 200, null])
  }
})

it('pages through devices without a gap', async () => {
  const known = new Set<string>()
  for (let index = 0; index < 60; index += 1) {
    const { body } = await twin.call('POST', '/edge/api/v1/enrollment-tokens', {
      body: { instanceIds: [scene.instanceId], name: `Bulk ${index}` },
    })
    const { jwk } = await newDeviceKeys()
    await twin.call('POST', '/edge/api/v1/enrollments', { token: text(body, 'token'), body: { publicKey: jwk } })
  }
  for (let path = '/devices?search=Bulk'; path !== '';) {
    const { page } = await browser.open(path)
    for (const [, name = ''] of page.matchAll(/(Bulk \d+)<\/a>/g)) known.add(name)
    path = /href="[^"]*console(\/devices[^"]*)" rel="next"/.exec(page)?.[1]?.replaceAll('&amp;', '&') ?? ''
  }
  expect(known.size).toBe(60)
})

describe('the name of a device', () => {
  const cells = (page: string): string =>
    page
      .replace(/^[^]*<main/, '<main')
      .replaceAll(/<[^>]*>/g, ' ')
      .replaceAll(/\s+/g, ' ')

  it('is shown in place of its id in the audit and the usage', async () => {
    expect(cells((await browser.open('/audit')).page)).toContain('device Printer')
    expect(cells((await browser.open('/usage')).page)).toContain('device Printer')
  })

  it('filters the audit and the usage, like its id', async () => {
    for (const path of ['/audit', '/usage']) {
      const byId = cells((await browser.open(`${path}?device=${scene.device.id}`)).page)
      const byName = await browser.open(`${path}?device=Printer`)
      expect(byName.status).toBe(200)
      expect(cells(byName.page).replace('of device Printer,', '')).toBe(
        byId.replace(`of device ${scene.device.id},`, ''),
      )
      const none = await browser.open(`${path}?device=Print`)
      expect([none.status, none.page.includes('There is no device Print.')]).toEqual([404, true])
      expect(none.page).toContain('name="device" value="Print"')
    }
  })
})
