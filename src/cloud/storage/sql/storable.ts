import { CodedError } from '../../../protocol/errors.ts'

/** @throws CodedError BAD_REQUEST */
export function requireStorable(parameters: readonly unknown[]): void {
  for (const value of parameters) {
    if (typeof value === 'bigint' && BigInt.asIntN(64, value) !== value) {
      throw new CodedError('BAD_REQUEST', 'The request leads to an amount that is larger than any counter can hold.')
    }
  }
}
