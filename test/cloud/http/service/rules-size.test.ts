// The rules of an instance that a device can fetch: with all rate tables and in base64, an answer has at most 16 MiB.
import { expect, it } from 'vitest'
import { lineItemBody, openTwin, text } from '../../harness.ts'

it('refuses rules that no device could fetch, and takes fewer again', { timeout: 60_000 }, async () => {
  await using twin = await openTwin()
  const instance = await twin.instance()
  const path = `/api/v1.1/instances/${instance}`
  // Each character has three bytes, and an instance may have four million characters.
  const long = Array.from({ length: 100 }, (_, n) => `${n}`.padEnd(990, '漢'))
  const condition = { operator: 'IN', property: 'a', values: long }
  const add = (count: number) => twin.call('POST', `${path}/conditions`, { body: Array(count).fill(condition) })
  for (let round = 0; round < 5; round += 1) expect((await add(3)).status).toBe(200)
  const message: unknown = expect.stringMatching(/at most 5000000 bytes .* would have 5\d{6}\./)
  const tooLarge = { status: 400, body: { message } }
  const added = await add(1)
  expect(added.status).toBe(200)
  expect(await add(1)).toMatchObject(tooLarge)

  expect((await twin.lineItem(instance)).status).toBe(201)
  const conditionId = text(added.body, 0, 'id')
  const actions = (count: number) => ({
    body: Array(count).fill({ action: 'DENY', conditionId, name: 'x'.repeat(250) }),
  })
  const actionsPath = `${path}/line-items/ACT-1/actions`
  expect(await twin.call('POST', actionsPath, actions(1_000))).toMatchObject(tooLarge)
  expect(await twin.call('POST', actionsPath, actions(400))).toMatchObject({ status: 200 })

  const map = (n: number) =>
    twin.lineItem(instance, { activationId: `D-${n}`, attributes: { resetFrequency: 'DAILY' } })
  let mapped = 0
  while ((await map(mapped)).status === 201) mapped += 1
  expect(await map(mapped)).toMatchObject({ status: 400, body: { message: [message] } })
  const old = (n: number) => {
    const body = lineItemBody({ activationId: `${n}`.padEnd(200, 'x') })
    return twin.call('PUT', `/provisioning/api/v1.0/instances/${instance}/line-items`, { body })
  }
  let count = 0
  while ((await old(count)).status === 201) count += 1
  expect(await old(count)).toMatchObject({ status: 400, body: { errors: [message] } })
  const grown = { activationId: 'ACT-1', state: 'OBSOLETE', attributes: { resetFrequency: 'DAILY' } } as const
  expect(await twin.lineItem(instance, grown)).toMatchObject({ status: 400 })
  const limit = { limit: 1, frequency: 'DAILY', nextReset: twin.now + 1_000 }
  expect(await twin.call('PUT', `${path}/line-items/D-1/consumption-limit`, { body: limit })).toMatchObject(tooLarge)
  const obsolete = await twin.lineItem(instance, { activationId: 'D-0', state: 'OBSOLETE' })
  expect(obsolete.status).toBe(200)
  expect((await twin.call('DELETE', `/provisioning${path}/line-items/D-0`)).status).toBe(204)
  expect((await map(mapped)).status).toBe(201)
})
