/** The meta data of requested items goes to the usage records as it was written. */
import type { AccessRequestBody } from '../../../protocol/service/access-request.ts'

export function metaDataOf({ requestedItems }: Pick<AccessRequestBody, 'requestedItems'>): readonly (string | null)[] {
  return requestedItems.map(({ metaData }) => (metaData === undefined ? null : JSON.stringify(metaData)))
}
