import { CodedError, messageOf } from '../../../protocol/errors.ts'

/** The database checks the places of its values, not their content. @throws CodedError DATABASE_CORRUPT */
export function unlessDamaged<T>(table: string, read: () => T): T {
  try {
    return read()
  } catch (cause) {
    throw new CodedError('DATABASE_CORRUPT', `A row of the table ${table} is damaged: ${messageOf(cause)}`, { cause })
  }
}
