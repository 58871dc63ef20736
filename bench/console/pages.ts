/** Times of the pages of the console, in a twin of this process. */
import { join } from 'node:path'
import Sqlite from 'better-sqlite3'
import { Browser } from '../../test/cloud/console/browse.ts'
import { type Amounts, SINK, multiplyScene } from '../../test/cloud/console/multiply.ts'
import { furnish } from '../../test/cloud/console/scene.ts'
import { openTwin } from '../../test/cloud/harness.ts'
import { median } from '../load/latency.ts'

export interface PageTime {
  readonly path: string
  readonly medianMs: number
  readonly slowestMs: number
}

/** @throws Error for a page that is not answered with 200 */
export async function consolePages(amounts: Amounts, rounds: number): Promise<readonly PageTime[]> {
  await using twin = await openTwin()
  const { instanceId, device } = await furnish(twin, false)
  await twin.stop()
  const database = new Sqlite(join(twin.settings.store.path, 'twin.db'))
  multiplyScene(database, instanceId, amounts)
  database.close()
  await twin.start()
  const browser = await Browser.signedIn(twin)
  const times: PageTime[] = []
  for (const path of pathsOf(device.id)) {
    const taken: number[] = []
    for (let round = 0; round < rounds; round += 1) {
      const from = performance.now()
      const { status, page } = await browser.open(path)
      if (status !== 200) throw new Error(`${path} was answered with ${status}: ${page}`)
      taken.push(performance.now() - from)
    }
    times.push({ path: path === '' ? '/' : path, medianMs: median(taken), slowestMs: Math.max(...taken) })
  }
  return times
}

function pathsOf(deviceId: string): readonly string[] {
  return [
    '',
    ...['/devices', '/devices?search=0000', '/devices?contact=NEVER', '/devices?from=5000', `/devices/${deviceId}`],
    ...['/devices?labels=site%3Dberlin', '/devices?labels=site%3Drare&contact=NEVER'],
    '/devices/command?command=lock&of=all',
    '/instances/edit',
    ...[
      '/line-items',
      '/line-items/edit',
      '/line-items/limit?lineItem=LASER-2026',
      '/line-items/limit/remove?lineItem=LASER-2026',
      '/rules',
      '/rules/edit?lineItem=PRINT-2026',
      '/rules/condition',
      '/rate-tables/edit?series=laser&version=1',
      '/try?type=user&value=Ada&item=Print&count=1',
      '/rate-tables',
    ],
    ...[
      '/usage',
      '/usage?item=Print&outcome=refused',
      '/usage?from=2020-01-01T00:00&to=2020-01-02T00:00',
      '/usage?from=2020-01-01T00:00',
      '/sessions',
      '/sinks',
      `/sinks/${SINK}`,
      '/audit',
    ],
  ]
}
