import { CodedError } from '../../protocol/errors.ts'
import type { Reader } from '../storage/store.ts'

/** @throws CodedError NOT_FOUND */
export async function requireInstance(reader: Reader, instanceId: string): Promise<void> {
  if ((await reader.instances.get(instanceId)) === undefined) {
    throw new CodedError('NOT_FOUND', `There is no instance ${instanceId}.`)
  }
}
