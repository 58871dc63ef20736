import { expect, it } from 'vitest'
import { remember } from '../../../src/agent/sync/memory.ts'
import { snapshotWith } from '../harness.ts'

it('the last contact of an earlier run is when the cloud last confirmed rules', async () => {
  const at = async (...times: number[]) => {
    const policies = times.map((confirmedAt) => ({ instanceId: 'i', revision: 1, document: '', confirmedAt }))
    return (await remember(snapshotWith({ policies, identity: null }), false)).lastContactAt
  }
  expect([await at(), await at(0), await at(7, 9, 8)]).toEqual([null, null, 9])
})
