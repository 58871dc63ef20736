// Devices at the real twin that charge one line item, whose overdraft is unlimited for a while.
import { onTestFinished } from 'vitest'
import { lineAccount } from '../../../src/core/accounts/account.ts'
import { type Twin, openTwin } from '../../cloud/harness.ts'
import { deviceAt } from './device-at-twin.ts'
import type { TestDevice } from '../../agent/sync/test-device.ts'

export const UNLIMITED = { attributes: { overdraftType: 'Unlimited' } }

export class MeteredSite {
  readonly twin: Twin
  readonly instanceId: string
  readonly account: string

  private constructor(twin: Twin, instanceId: string) {
    this.twin = twin
    this.instanceId = instanceId
    this.account = lineAccount(instanceId, 'ACT-1', 0)
  }

  static async open(change: Parameters<Twin['shop']>[0] = UNLIMITED): Promise<MeteredSite> {
    const twin = await openTwin()
    onTestFinished(() => twin[Symbol.asyncDispose]())
    return new MeteredSite(twin, await twin.shop(change))
  }

  /** A device that has the rules, and what they grant at first. */
  async device(): Promise<TestDevice> {
    const device = await deviceAt(this.twin, this.instanceId)
    await device.start()
    await device.settle()
    return device
  }

  async change(change: Parameters<Twin['lineItem']>[1] = {}): Promise<void> {
    const { status, text } = await this.twin.lineItem(this.instanceId, change)
    if (status >= 300) throw new Error(text)
  }

  /** Micro-tokens. */
  async used(): Promise<bigint> {
    return BigInt(Math.round((await this.twin.used(this.instanceId, 'ACT-1')) * 1e6))
  }

  async pool() {
    const pools = await this.twin.read((reader) => reader.accounts.get([this.account]))
    const pool = pools.get(this.account)
    if (pool === undefined) throw new Error('no device has drawn on the pool')
    return pool
  }

  /** What the twin has on record of the account on the device. */
  async record(device: TestDevice) {
    const { deviceId, epoch } = device.link.status()
    return this.twin.read(async (reader) =>
      (await reader.edge.deviceAccounts.get(deviceId ?? '', epoch, [this.account])).get(this.account),
    )
  }
}

/** Charges as an access request does: what falls short is asked for before it is refused. */
export async function request(device: TestDevice, amount: bigint): Promise<'GRANTED' | 'REFUSED' | 'UNKNOWN'> {
  if (device.left < amount) {
    const { account } = device.charged
    const asked = device.link.requestGrant({ needs: [[{ account, amount }]], accounts: [account] }, 2_000)
    await device.pass(2_000)
    if (device.fatal.length === 0) await asked
  }
  return device.charge(amount)
}
