import { base64url } from 'jose'

/** The payload of a signed document, with another way to make one of it. */
export function payloadOf(document: string): Record<string, unknown> {
  return JSON.parse(new TextDecoder().decode(base64url.decode(document.split('.')[1] ?? ''))) as Record<string, unknown>
}
