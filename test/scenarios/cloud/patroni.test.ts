// Patroni with the settings of docs/how-to/high-availability.md moves the primary of a cloud's PostgreSQL while clients and devices
// use two nodes. The times without an answer are printed, and depend on the machine.
import { afterEach, beforeEach, describe, expect, it } from 'vitest'
import { PatroniCluster, type PatroniMember, patroniPrograms } from '../../support/patroni.ts'
import { FailoverCloud } from './failover-cloud.ts'
import { FailoverLoad } from './failover-load.ts'

describe('a cloud whose PostgreSQL is managed by Patroni', { timeout: 600_000 }, () => {
  const programs = patroniPrograms()
  let cluster: PatroniCluster
  let cloud: FailoverCloud

  beforeEach(async () => {
    cluster = await PatroniCluster.start(programs)
    cloud = await FailoverCloud.start(cluster.url)
  })
  afterEach(async () => {
    await cloud[Symbol.asyncDispose]()
    await cluster[Symbol.asyncDispose]()
  })

  it('loses and doubles nothing when the primary is killed, switched over, not controlled for a time, or loses etcd', async () => {
    const [first, second] = cluster.members
    const load = new FailoverLoad(cloud.site)
    await load.begin({ keyed: 3, plain: 3, session: 2, device: 3 })
    await load.eachServed(3)
    /** Runs until everyone has been served again. */
    const step = async (name: string, run: () => Promise<unknown>): Promise<void> => {
      load.report()
      await run()
      await load.eachServed(3)
      process.stdout.write(`${name}: ${load.report()}\n`)
    }
    const primaryInStep = async (): Promise<PatroniMember> => {
      const primary = await cluster.inStep()
      await load.eachServed(1)
      return primary
    }

    await step('killed', async () => {
      await first.kill()
      await cluster.hasPrimary(second)
    })
    first.start()
    expect(await primaryInStep()).toBe(second)

    await step('switched over', async () => {
      await cluster.ctl('switchover', '--candidate', first.name, '--force')
      await cluster.hasPrimary(first)
    })
    expect(await primaryInStep()).toBe(first)

    // The former primary still serves connections, and believes that it is the primary.
    await step('its Patroni killed', async () => {
      await first.killPatroni()
      await cluster.hasPrimary(second)
    })
    first.start()
    expect(await primaryInStep()).toBe(second)

    // It has its PostgreSQL, which is a former primary, wait for no standby any more before it stops it.
    await step('its Patroni restarted after the promotion', async () => {
      await second.killPatroni()
      await cluster.hasPrimary(first)
      second.start()
    })
    expect(await primaryInStep()).toBe(first)

    await step('without etcd', async () => {
      await cluster.etcd.kill()
      const request = () => cloud.call('GET', '/provisioning/api/v1.1/instances').then(() => 'served', String)
      await expect.poll(request, { timeout: 60_000 }).toContain('DATABASE_UNREACHABLE')
      cluster.etcd.start()
    })
    const primary = await primaryInStep()
    await load.end()
    expect(load.wrong).toEqual([])
    expect(await load.audit(cluster.urlOf(primary))).toEqual([])
    expect(await cloud.stop()).toEqual([0, 0])
  })
})
