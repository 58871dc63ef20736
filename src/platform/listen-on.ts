import { once } from 'node:events'
import type { AddressInfo, Server } from 'node:net'
import { listenFailure } from '../protocol/listen-failure.ts'

/** @param setting names the port. @throws CodedError ADDRESS_IN_USE, ADDRESS_NOT_PERMITTED */
export async function listenOn(
  server: Server,
  place: { readonly host: string; readonly port: number; readonly backlog?: number },
  setting: string,
): Promise<AddressInfo> {
  try {
    await once(server.listen(place), 'listening')
  } catch (cause) {
    throw listenFailure(cause, `${place.host}:${place.port} (${setting})`)
  }
  return server.address() as AddressInfo
}
