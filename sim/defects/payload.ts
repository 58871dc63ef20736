import { base64url } from 'jose'

export function payloadOf(document: string): Record<string, unknown> {
  return JSON.parse(new TextDecoder().decode(base64url.decode(document.split('.')[1] ?? ''))) as Record<string, unknown>
}
