// How many new requesters a device names, and that the cloud accepts that many.
import { EventEmitter } from 'node:events'
import type { ServerResponse } from 'node:http'
import { describe, expect, it } from 'vitest'
import { NEW_REQUESTERS_MAX, NEW_REQUESTERS_PER_HOUR, NewRequesters } from '../../../src/agent/ledger/new-requesters.ts'
import { type AccountId, limitAccount, lineAccount } from '../../../src/core/accounts/account.ts'
import { SyncGate } from '../../../src/cloud/http/edge/sync-gate.ts'
import { accountState } from '../harness.ts'
import { INSTANCE } from '../sync/fake-cloud.ts'

const MINUTE = 60_000
const HOUR = 60 * MINUTE
const LINE = lineAccount(INSTANCE, 'line-1', 0)

class Device {
  now = 0
  readonly known = new Set<AccountId>()
  readonly requesters = new NewRequesters(
    { get: (account) => (this.known.has(account) ? accountState({}) : undefined) },
    { sinceBoot: () => this.now },
  )
  #invented = 0

  constructor() {
    this.requesters.begin()
  }

  invent(count: number): AccountId[] {
    return Array.from({ length: count }, () => {
      const requester = { type: 'user', value: String((this.#invented += 1)) }
      return limitAccount(INSTANCE, 'line-1', requester, 0)
    })
  }
}

describe('new requesters', () => {
  it('are refused above the limit, with the time after which one more is admitted', () => {
    const device = new Device()
    expect(device.requesters.refusalOf(device.invent(NEW_REQUESTERS_MAX))).toBeNull()
    const refusal = device.requesters.refusalOf(device.invent(1))
    expect(refusal).toMatchObject({ code: 'REQUESTERS_LIMITED', details: { retryAfterMs: 720 } })
    device.now += 720
    expect(device.requesters.refusalOf(device.invent(1))).toBeNull()
    expect(device.requesters.refusalOf(device.invent(1))).not.toBeNull()
    device.now += HOUR
    expect(device.requesters.refusalOf(device.invent(NEW_REQUESTERS_PER_HOUR))).toBeNull()
  })

  it('are those without a balance of a consumption limit', () => {
    const device = new Device()
    const [known, unknown] = device.invent(2)
    if (known === undefined || unknown === undefined) throw new Error('two requesters were invented')
    device.known.add(known)
    expect(device.requesters.areAmong([LINE, known])).toBe(false)
    expect(device.requesters.areAmong([LINE, known, unknown])).toBe(true)
  })

  it('do not delay requesters with a balance, nor other accounts', () => {
    const device = new Device()
    const [known = ''] = device.invent(1)
    device.known.add(known)
    device.requesters.refusalOf(device.invent(NEW_REQUESTERS_MAX))
    expect(device.requesters.refusalOf([known, LINE])).toBeNull()
  })

  it('count once, although a request that is not recorded is repeated', () => {
    const device = new Device()
    const [unlucky = ''] = device.invent(1)
    for (let attempt = 0; attempt <= NEW_REQUESTERS_MAX; attempt += 1) {
      expect(device.requesters.refusalOf([unlucky])).toBeNull()
    }
    expect(device.requesters.refusalOf(device.invent(NEW_REQUESTERS_MAX - 1))).toBeNull()
    expect(device.requesters.refusalOf(device.invent(1))).not.toBeNull()
  })

  it('are remembered, the last ones at least', () => {
    const device = new Device()
    const refused = device.invent(NEW_REQUESTERS_MAX)
    expect(device.requesters.refusalOf(refused)).toBeNull()
    device.now += HOUR
    for (let others = 0; others < 3; others += 1) expect(device.requesters.refusalOf(device.invent(1))).toBeNull()
    for (const account of refused.slice(3)) expect(device.requesters.refusalOf([account])).toBeNull()
    expect(device.requesters.refusalOf(device.invent(NEW_REQUESTERS_PER_HOUR - 3))).toBeNull()
    expect(device.requesters.refusalOf(device.invent(1))).not.toBeNull()
  })

  it('are counted anew in the next epoch, because the cloud knows the requesters of the one before', () => {
    const device = new Device()
    device.requesters.refusalOf(device.invent(NEW_REQUESTERS_MAX))
    device.requesters.begin()
    expect(device.requesters.refusalOf(device.invent(NEW_REQUESTERS_MAX))).toBeNull()
  })

  it('are as many as in an hour after a restart, and no more than the cloud accepts', () => {
    const device = new Device()
    device.requesters.refusalOf(device.invent(NEW_REQUESTERS_MAX))
    const restarted = new NewRequesters({ get: () => undefined }, { sinceBoot: () => device.now })
    expect(restarted.refusalOf(device.invent(NEW_REQUESTERS_PER_HOUR))).toBeNull()
    expect(restarted.refusalOf(device.invent(1))).not.toBeNull()
    const gate = new SyncGate(() => device.now)
    gate.count('device', 'MERGE', { bytes: 1_000, opened: NEW_REQUESTERS_MAX + NEW_REQUESTERS_PER_HOUR })
    gate.enter('device', new EventEmitter() as ServerResponse)
  })

  it('never use up the allowance of the syncs, however many an application invents', () => {
    const device = new Device()
    const gate = new SyncGate(() => device.now)
    for (; device.now < 24 * HOUR; device.now += 5 * MINUTE) {
      const response = new EventEmitter() as ServerResponse
      gate.enter('device', response)
      let opened = 0
      while (opened < 30_000 && device.requesters.refusalOf(device.invent(100)) === null) opened += 100
      gate.count('device', 'MERGE', { bytes: 1_000, opened })
      response.emit('close')
    }
  })
})
