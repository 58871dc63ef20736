// The primary of a cloud's PostgreSQL is killed while clients and devices use two nodes, and its standby takes over. What
// was acknowledged is in the books once. The times without an answer are printed, and depend on the machine.
import { afterEach, beforeEach, describe, expect, it } from 'vitest'
import { PostgresPair, type PostgresProcess, postgresPrograms } from '../../support/postgres-pair.ts'
import { recordsOf } from '../../../src/cloud/storage/sql/packed-usage.ts'
import { runSql, usageRowsIn } from '../../support/postgres-schema.ts'
import { pick } from '../../cloud/harness.ts'
import { FailoverCloud } from './failover-cloud.ts'
import { EVERYONE, FailoverLoad } from './failover-load.ts'

describe('a cloud whose primary database is killed', { timeout: 300_000 }, () => {
  const programs = postgresPrograms()
  let pair: PostgresPair
  let [first, second]: PostgresProcess[] = []
  let cloud: FailoverCloud

  beforeEach(async () => {
    pair = await PostgresPair.start(programs.folder)
    ;[first, second] = pair.servers
    cloud = await FailoverCloud.start(pair.url)
  })
  afterEach(async () => {
    await cloud[Symbol.asyncDispose]()
    await pair[Symbol.asyncDispose]()
  })

  it('loses and doubles nothing that was acknowledged, and continues without a restart', async () => {
    await first!.requireStandby()
    const load = new FailoverLoad(cloud.site)
    await load.begin(EVERYONE)
    await load.eachServed(5)
    await first!.kill()
    await second!.promote()
    await load.eachServed(5)
    await load.end()
    process.stdout.write(`${load.report()}\n`)
    expect(load.wrong).toEqual([])
    expect(await load.audit(second!.url)).toEqual([])
    expect(await cloud.stop()).toEqual([0, 0])
    // Nor would the audit have missed a record.
    const granted = (await usageRowsIn(second!.url)).findLast((row) =>
      recordsOf(row).every(({ source, status }) => source.kind === 'one-off' && status === 'GRANTED'),
    )
    await runSql(second!.url, `DELETE FROM usage WHERE seq = ${granted?.seq}`)
    const problems = await load.audit(second!.url)
    expect(problems).toContainEqual(expect.stringMatching(/^lost: /))
    expect(problems).toContainEqual(expect.stringMatching(/^account /))
  })

  it('follows the primary to the other server and back again', async () => {
    await first!.requireStandby()
    const load = new FailoverLoad(cloud.site)
    await load.begin(EVERYONE)
    await load.eachServed(3)
    await first!.kill()
    await second!.promote()
    await load.eachServed(3)
    await pair.rejoin(first!, second!)
    await second!.requireStandby()
    await load.eachServed(3)
    await second!.kill()
    await first!.promote()
    await load.eachServed(3)
    await load.end()
    process.stdout.write(`${load.report()}\n`)
    expect(load.wrong).toEqual([])
    expect(await load.audit(first!.url)).toEqual([])
    expect(await cloud.stop()).toEqual([0, 0])
  })

  it('loses only what the standby had not received, which the audit finds, and sells no token twice', async () => {
    const load = new FailoverLoad(cloud.site)
    await load.begin({ ...EVERYONE, device: 0 })
    await load.eachServed(3)
    await second!.stop()
    await load.eachServed(10)
    await load.end()
    expect(await load.audit(first!.url)).toEqual([])
    await first!.kill()
    await second!.start()
    await second!.promote()
    expect(await load.audit(second!.url)).toContainEqual(expect.stringMatching(/^lost: keyed-/))
    const request = {
      requester: { type: 'user', value: 'u' },
      requestedItems: [{ item: 'Print', version: '1.0', count: 1 }],
    }
    const path = `/elastic/api/v1.1/instances/${cloud.site.instances.requests}/access-request`
    await expect
      .poll(() => cloud.call('POST', path, request).catch(String), { timeout: 60_000 })
      .toSatisfy((body) => pick(body, 'requestedItems', 0, 'status', 'code') === '2011')
  })
})
