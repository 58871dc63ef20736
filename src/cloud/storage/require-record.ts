import { CodedError } from '../../protocol/errors.ts'
import type { LineItemRecord } from './records.ts'
import type { Reader } from './store.ts'

/** @throws CodedError NOT_FOUND */
export async function requireInstance(reader: Reader, instanceId: string): Promise<void> {
  if ((await reader.instances.get(instanceId)) === undefined) {
    throw new CodedError('NOT_FOUND', `There is no instance ${instanceId}.`)
  }
}

/** @throws CodedError NOT_FOUND, also for a deleted line item */
export async function requireLineItem(reader: Reader, instanceId: string, id: string): Promise<LineItemRecord> {
  const record = await reader.lineItems.get(instanceId, id)
  if (record?.deleted !== null) {
    throw new CodedError('NOT_FOUND', `There is no line item ${JSON.stringify(id)} on instance ${instanceId}.`)
  }
  return record
}
