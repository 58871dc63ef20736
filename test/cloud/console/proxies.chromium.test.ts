// The way to a console of a company: a browser and a command line behind a proxy with a password, and a reverse proxy that
// ends TLS before the cloud.
import { readFileSync, writeFileSync } from 'node:fs'
import { request } from 'node:http'
import { createServer } from 'node:https'
import type { AddressInfo } from 'node:net'
import { join } from 'node:path'
import { expect, it, onTestFinished } from 'vitest'
import { temporaryDirectory } from '../../agent/harness.ts'
import { tallygate } from '../../cli/outside.ts'
import { Authority, type Certified } from '../../support/certificates.ts'
import { browserForTests } from '../../support/chromium.ts'
import { openProxy } from '../../support/http-proxy.ts'
import { openTwin } from '../harness.ts'
import { furnish } from './scene.ts'

const HOST = 'cloud.test'
const ORIGIN = `https://${HOST}`
const USER = { username: 'press', password: 'line 4' }

const chromium = browserForTests()

/** Passes requests with their path to a cloud without TLS. Returns its port. */
async function openReverseProxy(cloud: string, { certificate: cert, key }: Certified): Promise<number> {
  const { hostname, port } = new URL(cloud)
  const server = createServer({ cert, key }, (inbound, response) => {
    const { method, url: path, headers } = inbound
    const forwarded = { ...headers, 'x-forwarded-proto': 'https', 'x-forwarded-host': HOST }
    const outbound = request({ hostname, port, method, path, headers: forwarded }, (answer) => {
      response.writeHead(answer.statusCode ?? 502, answer.headers)
      answer.pipe(response)
    })
    outbound.on('error', () => response.destroy())
    inbound.pipe(outbound)
  })
  await new Promise<void>((resolve) => server.listen(0, '127.0.0.1', resolve))
  onTestFinished(() => {
    server.closeAllConnections()
    server.close()
  })
  return (server.address() as AddressInfo).port
}

it('signs a browser in through proxies on both sides', { timeout: 60_000 }, async () => {
  await using twin = await openTwin((settings) => ({ ...settings, http: { ...settings.http, publicUrl: ORIGIN } }))
  await furnish(twin, false)
  await using authority = await Authority.make()
  const reverse = await openReverseProxy(twin.cloud.address, await authority.certify(Date.now() + 86_400_000, HOST))
  const proxy = await openProxy({ [HOST]: reverse }, `${USER.username}:${USER.password}`)
  const caFile = join(temporaryDirectory(), 'ca.pem')
  writeFileSync(caFile, authority.certificate)

  const { pathname: prefix } = new URL(twin.cloud.address)
  const key = ['--admin-key', twin.cloud.administrationKeyFile, '--ca-file', caFile]
  const surroundings = {
    env: { HTTPS_PROXY: `http://press:line%204@127.0.0.1:${proxy.port}` },
    now: () => twin.now,
    readText: (path: string) => readFileSync(path, 'utf8'),
  }
  const printed = await tallygate(['console', '--url', `${ORIGIN}${prefix}`, ...key], surroundings)
  expect(printed).toMatchObject({ code: 0, err: '' })
  const url = printed.out.trim()
  expect(url).toContain(`${ORIGIN}${prefix}/console/sign-in#`)

  const context = await chromium.browser.newContext({
    proxy: { server: `http://127.0.0.1:${proxy.port}`, ...USER },
    ignoreHTTPSErrors: true,
  })
  onTestFinished(() => context.close())
  const page = await context.newPage()
  await page.goto(url)
  await page.waitForURL(`${ORIGIN}${prefix}/console`)
  expect(await context.cookies()).toMatchObject([
    { name: 'tallygate_console', domain: HOST, path: `${prefix}/console`, httpOnly: true, secure: true },
  ])
  await page.getByRole('link', { name: 'Devices', exact: true }).click()
  await page.getByRole('link', { name: 'Press 1' }).click()
  await page.getByRole('textbox', { name: 'Labels of the device' }).fill('site=bonn')
  await page.getByRole('button', { name: 'Save' }).click()
  await page.getByRole('link', { name: 'site=bonn' }).click()
  expect(page.url()).toMatch(new RegExp(`^${ORIGIN}${prefix}/console/devices\\?`))
  await page.getByRole('button', { name: 'Sign out' }).click()
  await page.waitForURL(`${ORIGIN}${prefix}/console/sign-in`)
  expect(await context.cookies()).toEqual([])
  expect(proxy.log).toContain(`CONNECT ${HOST}:443 200`)
})
