import { describe, expect, it } from 'vitest'
import { DAY, START, openTwin, lineItemBody, pick } from '../../harness.ts'

const path = (instance: string, version = 'v1.1', id = ''): string =>
  `/provisioning/api/${version}/instances/${instance}/line-items${id === '' ? '' : `/${encodeURIComponent(id)}`}`

describe('a line item', () => {
  it('is mapped, and reported unchanged', async () => {
    await using twin = await openTwin()
    const instance = await twin.instance()
    const given = {
      activationId: 'abc 123/ä',
      state: 'DEPLOYED',
      start: 1695772800000,
      end: 253402300799999,
      quantity: 200,
      attributes: { elastic: true, rateTableSeries: '1', overdraftLimit: 5, overdraftType: 'Number' },
    }
    const put = await twin.call('PUT', path(instance, 'v1.0'), { body: given })
    expect(put.status).toBe(201)
    expect(put.body).toEqual({ ...given, used: 0 })
    expect((await twin.call('GET', path(instance, 'v1.0', 'abc 123/ä'))).body).toEqual({ ...given, used: 0 })
    expect((await twin.call('GET', path(instance, 'v1.0'))).body).toEqual([{ ...given, used: 0 }])
  })

  it('is replaced entirely, except for its used tokens', async () => {
    await using twin = await openTwin()
    const instance = await twin.instance()
    await twin.rates({ Print: 1.5 })
    await twin.lineItem(instance, { attributes: { overdraftLimit: 5, overdraftType: 'Number' } })
    await twin.access(instance, { Print: 3 })
    const put = await twin.lineItem(instance, { quantity: 7, used: 0 })
    expect(put.status).toBe(200)
    expect(put.body).toEqual({ ...lineItemBody({ quantity: 7 }), used: 4.5 })
  })

  it('takes its own record back, in both versions', async () => {
    await using twin = await openTwin()
    const instance = await twin.instance()
    await twin.lineItem(instance, { attributes: { resetFrequency: 'MONTHLY', overdraftType: 'Unlimited' } })
    for (const version of ['v1.1', 'v1.0']) {
      const { body } = await twin.call('GET', path(instance, version, 'ACT-1'))
      expect((await twin.call('PUT', path(instance, version), { body })).status).toBe(200)
    }
  })

  it('does not show resetFrequency in v1.0, which does not know it', async () => {
    await using twin = await openTwin()
    const instance = await twin.instance()
    await twin.lineItem(instance, { attributes: { resetFrequency: 'DAILY' } })
    expect(pick((await twin.call('GET', path(instance, 'v1.1', 'ACT-1'))).body, 'attributes')).toEqual({
      elastic: true,
      resetFrequency: 'DAILY',
    })
    expect(pick((await twin.call('GET', path(instance, 'v1.0', 'ACT-1'))).body, 'attributes')).toEqual({
      elastic: true,
    })
  })

  it('is refused with every problem of the payload, under errors in v1.0 and under message in v1.1', async () => {
    await using twin = await openTwin()
    const instance = await twin.instance()
    const wrong = {
      state: 'GONE',
      quantity: 1.5,
      start: '1695772800000',
      end: -1,
      extra: 1,
      attributes: { elastic: 'yes', overdraftLimit: 'ten', resetFrequency: 'DAILY', colour: 'red' },
    }
    const common = [
      "$: required property 'activationId' not found",
      '$.state: does not have a value in the enumeration [DEPLOYED, INACTIVE, OBSOLETE]',
      '$.quantity: number found, integer expected',
      '$.start: string found, integer expected',
      '$.end: must have a minimum value of 0',
      '$.attributes.elastic: string found, boolean expected',
      '$.attributes.overdraftLimit: string found, integer expected',
      "$.attributes: required property 'overdraftType' not found",
      "$.attributes: property 'colour' is not defined in the schema and the schema does not allow additional properties",
      "$: property 'extra' is not defined in the schema and the schema does not allow additional properties",
    ]
    const v11 = await twin.call('PUT', path(instance, 'v1.1'), { body: wrong })
    expect(v11.status).toBe(400)
    expect(Object.keys(v11.body as object)).toEqual(['message'])
    expect((pick(v11.body, 'message') as string[]).toSorted()).toEqual(common.toSorted())
    const many = Object.fromEntries(Array.from({ length: 10_000 }, (_, n) => [`f${n}`, 1]))
    const { body } = await twin.call('PUT', path(instance, 'v1.1'), { body: { ...wrong, ...many } })
    expect(pick(body, 'message') as string[]).toHaveLength(100)
    const v10 = await twin.call('PUT', path(instance, 'v1.0'), { body: wrong })
    expect(v10.status).toBe(400)
    expect(Object.keys(v10.body as object)).toEqual(['errors'])
    expect((pick(v10.body, 'errors') as string[]).toSorted()).toEqual(
      [
        ...common,
        "$.attributes: property 'resetFrequency' is not defined in the schema and the schema does not allow additional properties",
      ].toSorted(),
    )
  })

  it('is refused in the words of the documented examples', async () => {
    await using twin = await openTwin()
    const instance = await twin.instance()
    const problems = async (attributes: Record<string, unknown>, change: Record<string, unknown> = {}) =>
      pick((await twin.lineItem(instance, { ...change, attributes })).body, 'message')
    expect(await problems({ overdraftLimit: 'x', overdraftType: 'Number' })).toEqual([
      '$.attributes.overdraftLimit: string found, integer expected',
    ])
    expect(await problems({ resetFrequency: 5 })).toEqual([
      '$.attributes.resetFrequency: integer found, string expected',
    ])
    expect(await problems({ resetFrequency: 'HOURLY' })).toEqual([
      '$.attributes.resetFrequency: does not have a value in the enumeration [NONE, DAILY, WEEKLY, MONTHLY, YEARLY]',
    ])
    expect(await problems({ overdraftType: 'Number' })).toEqual([
      "$.attributes: required property 'overdraftLimit' not found",
    ])
    expect(await problems({ overdraftType: 'Some', overdraftLimit: -1 })).toEqual([
      '$.attributes.overdraftLimit: must have a minimum value of 0',
      '$.attributes.overdraftType: does not have a value in the enumeration [Number, Unlimited]',
    ])
    expect(await problems({}, { end: START - 31 * DAY })).toEqual(['$.end: must not be before start'])
    expect(await problems({}, { start: 2 ** 62, end: 2 ** 60 })).toEqual(['$.end: must not be before start'])
    expect(await problems({}, { activationId: '' })).toEqual(['$.activationId: must be at least 1 characters long'])
    expect(await problems({}, { activationId: 'x'.repeat(257) })).toEqual([
      '$.activationId: must be at most 256 characters long',
    ])
    expect(await problems({}, { quantity: -1 })).toEqual(['$.quantity: must have a minimum value of 0'])
    expect(await problems({}, { quantity: null })).toEqual(['$.quantity: null found, integer expected'])
    expect(await problems({}, { quantity: 9e12, activationId: 'x' })).toBeUndefined()
    expect(await problems({ overdraftType: 'Number', overdraftLimit: 1e19 }, { quantity: 9e12 })).toEqual([
      '$.attributes.overdraftLimit: must have a maximum value of 9223372036854775807',
    ])
    expect(await problems({}, { instanceId: '64d2028c-ae87-4069-a624-66089d957ef9' })).toEqual([
      '$.instanceId: must be the instance of the path',
    ])
    expect(await problems({}, { instanceId: instance.toUpperCase() })).toBeUndefined()
    for (const body of [[], null, 'text', 5]) {
      const { status, body: said } = await twin.call('PUT', path(instance), { body })
      expect(status).toBe(400)
      expect(pick(said, 'message', 0)).toMatch(/^\$: (array|null|string|integer) found, object expected$/)
    }
  })

  it('begins DEPLOYED, and stays OBSOLETE once it is OBSOLETE', async () => {
    await using twin = await openTwin()
    const instance = await twin.instance()
    const put = async (state: string) => (await twin.lineItem(instance, { state })).status
    expect(await put('INACTIVE')).toBe(400)
    expect(await put('OBSOLETE')).toBe(400)
    expect(await put('DEPLOYED')).toBe(201)
    expect(await put('INACTIVE')).toBe(200)
    expect(await put('DEPLOYED')).toBe(200)
    expect(await put('OBSOLETE')).toBe(200)
    expect(await put('OBSOLETE')).toBe(200)
    expect((await twin.lineItem(instance, { state: 'DEPLOYED' })).body).toEqual({
      message: ['$.state: OBSOLETE is final and cannot become DEPLOYED'],
    })
    expect(await put('INACTIVE')).toBe(400)
  })

  it('is deleted only when it is OBSOLETE, and then gone with its actions', async () => {
    await using twin = await openTwin()
    const instance = await twin.instance()
    await twin.lineItem(instance)
    const conditions = `/api/v1.1/instances/${instance}/conditions`
    const made = await twin.call('POST', conditions, { body: [{ operator: 'IN', property: 'p', values: ['v'] }] })
    const conditionId = pick(made.body, 0, 'id')
    const actions = `/api/v1.1/instances/${instance}/line-items/ACT-1/actions`
    await twin.call('POST', actions, { body: [{ action: 'ALLOW', conditionId, allocation: 5 }] })
    expect((await twin.call('DELETE', path(instance, 'v1.1', 'ACT-1'))).status).toBe(409)
    await twin.lineItem(instance, { state: 'OBSOLETE' })
    expect((await twin.call('DELETE', path(instance, 'v1.1', 'ACT-1'))).status).toBe(204)
    expect((await twin.call('DELETE', path(instance, 'v1.1', 'ACT-1'))).status).toBe(404)
    expect((await twin.call('GET', path(instance, 'v1.1', 'ACT-1'))).status).toBe(404)
    expect((await twin.call('GET', path(instance))).body).toEqual([])
    expect((await twin.call('GET', actions)).status).toBe(404)
    expect((await twin.call('DELETE', conditions)).status).toBe(204)
  })

  it('that was deleted and is mapped again starts without use', async () => {
    await using twin = await openTwin()
    const instance = await twin.instance()
    await twin.rates({ Print: 1 })
    await twin.lineItem(instance, { quantity: 10 })
    await twin.access(instance, { Print: 9 })
    await twin.lineItem(instance, { quantity: 10, state: 'OBSOLETE' })
    await twin.call('DELETE', path(instance, 'v1.1', 'ACT-1'))
    twin.now += DAY
    expect((await twin.lineItem(instance, { quantity: 10 })).body).toMatchObject({ used: 0 })
    expect((await twin.lineItem(instance, { quantity: 10 })).status).toBe(200)
    const { body } = await twin.access(instance, { Print: 10 })
    expect(pick(body, 'requestedItems', 0, 'totalTokensCharged')).toBe(10)
  })

  it('belongs to an instance that exists', async () => {
    await using twin = await openTwin()
    const nowhere = '64d2028c-ae87-4069-a624-66089d957ef9'
    expect((await twin.lineItem(nowhere)).status).toBe(404)
    expect((await twin.call('GET', path(nowhere))).status).toBe(404)
    expect((await twin.call('GET', path(nowhere, 'v1.0', 'A'))).status).toBe(404)
    expect((await twin.call('GET', path('x'))).status).toBe(400)
  })

  it('may have less than was used: nothing more is granted until there is more', async () => {
    await using twin = await openTwin()
    const instance = await twin.instance()
    await twin.rates({ Print: 1 })
    await twin.lineItem(instance, { quantity: 10 })
    await twin.access(instance, { Print: 8 })
    expect((await twin.lineItem(instance, { quantity: 5 })).body).toMatchObject({ quantity: 5, used: 8 })
    expect(pick((await twin.access(instance, { Print: 1 })).body, 'requestedItems', 0, 'status', 'code')).toBe('2002')
    await twin.lineItem(instance, { quantity: 9 })
    expect(pick((await twin.access(instance, { Print: 1 })).body, 'requestedItems', 0, 'status', 'code')).toBe('1001')
  })
})
