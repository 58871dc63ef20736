import { unverifiedText } from '../../src/protocol/signing.ts'

export function payloadOf(document: string): Record<string, unknown> {
  return JSON.parse(unverifiedText(document) ?? '') as Record<string, unknown>
}
