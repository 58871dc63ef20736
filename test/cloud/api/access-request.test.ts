import { describe, expect, it } from 'vitest'
import { openTwin } from '../harness.ts'

describe('a one-off access request', () => {
  it('charges count times rate and tells who paid', async () => {
    await using twin = await openTwin()
    const instance = await twin.instance()
    await twin.rates({ PhotoPrint: 3 })
    await twin.lineItem(instance)
    const { status, body } = await twin.access(instance, { PhotoPrint: 10 })
    expect(status).toBe(200)
    expect(body).toEqual({
      correlationId: expect.stringMatching(/^[0-9a-f-]{36}$/) as string,
      requester: { type: 'user', value: 'LisaBarry' },
      requestedItems: [
        {
          item: 'PhotoPrint',
          count: 10,
          status: { code: '1001', description: 'Successfully checked out' },
          totalTokensCharged: 30,
          lineItems: [{ activationId: 'ACT-1', rate: 3, tokensCharged: 30 }],
        },
      ],
    })
    expect(await twin.used(instance, 'ACT-1')).toBe(30)
  })
})
