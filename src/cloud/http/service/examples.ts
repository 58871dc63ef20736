/** Examples for the API documents: the site of the README. */
import { type ApiVersion, ITEM_STATUS } from '../../../protocol/service/status.ts'

export const REQUEST_EXAMPLE = {
  requester: { type: 'user', value: 'anna', dictionary: { department: 'engineering' } },
  requestedItems: [{ item: 'LaserCut', version: '1.0', count: 2.5 }],
}

export function responseExample(version: ApiVersion): unknown {
  const { [version]: code, description } = ITEM_STATUS.GRANTED
  return {
    correlationId: '5c8ec4fd-f17f-4657-bf09-74a97ddc9f8b',
    requester: { type: 'user', value: 'anna' },
    requestedItems: [
      {
        item: 'LaserCut',
        version: '1.0',
        count: 2.5,
        status: { code, description },
        totalTokensCharged: 2.125,
        lineItems: [{ activationId: 'FIRST-1000', rate: 0.85, tokensCharged: 2.125 }],
      },
    ],
  }
}

export const LINE_ITEM_EXAMPLE = {
  activationId: 'FIRST-1000',
  state: 'DEPLOYED',
  start: 1_695_772_800_000,
  end: 1_790_467_199_999,
  quantity: 1000,
  used: 0,
  attributes: { elastic: true, rateTableSeries: '' },
}

export const RATE_TABLE_EXAMPLE = {
  effectiveFrom: 1_693_145_037_000,
  version: '1',
  items: [
    { name: 'LaserCut', version: '1.0', rate: 0.85 },
    { name: 'LaserEngrave', version: '1.0', rate: 0.4 },
  ],
}

export function problemsExample(version: ApiVersion): unknown {
  const problems = ['$.attributes.overdraftLimit: string found, integer expected']
  return version === 'v1.0' ? { errors: problems } : { message: problems }
}
