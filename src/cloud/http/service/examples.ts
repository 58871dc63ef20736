/** Examples for the API documents. Source: documentation, samples. */
import { type ApiVersion, ITEM_STATUS } from '../../../protocol/service/status.ts'

export const REQUEST_EXAMPLE = {
  requester: { type: 'user', value: 'LisaBarry', dictionary: { department: 'engineering' } },
  requestedItems: [{ item: 'PhotoPrint', version: '1.0', count: 10 }],
}

export function responseExample(version: ApiVersion): unknown {
  const { [version]: code, description } = ITEM_STATUS.GRANTED
  return {
    correlationId: '5c8ec4fd-f17f-4657-bf09-74a97ddc9f8b',
    requester: { type: 'user', value: 'LisaBarry' },
    requestedItems: [
      {
        item: 'PhotoPrint',
        version: '1.0',
        count: 10,
        status: { code, description },
        totalTokensCharged: 30,
        lineItems: [{ activationId: 'ACT01-Elastic', rate: 3, tokensCharged: 30 }],
      },
    ],
  }
}

export const LINE_ITEM_EXAMPLE = {
  activationId: 'abc123',
  state: 'DEPLOYED',
  start: 1_695_772_800_000,
  end: 1_790_467_199_999,
  quantity: 200,
  used: 0,
  attributes: { elastic: true, rateTableSeries: '1' },
}

export const RATE_TABLE_EXAMPLE = {
  effectiveFrom: 1_693_145_037_000,
  version: '1',
  series: 'PublicationApps',
  items: [
    { name: 'PhotoPrint', version: '1.0', rate: 3 },
    { name: 'SignPrint', version: '1.0', rate: 4 },
    { name: 'CADPrint', version: '2.0', rate: 7 },
  ],
}

export function problemsExample(version: ApiVersion): unknown {
  const problems = ['$.attributes.overdraftLimit: string found, integer expected']
  return version === 'v1.0' ? { errors: problems } : { message: problems }
}
