import type { AddressInfo, Server } from 'node:net'
import { listenFailure } from '../protocol/listen-failure.ts'

/** @param setting names the port. @throws CodedError ADDRESS_IN_USE, ADDRESS_NOT_PERMITTED */
export async function listenOn(
  server: Server,
  place: { readonly host: string; readonly port: number; readonly backlog?: number },
  setting: string,
): Promise<AddressInfo> {
  const { promise, resolve, reject } = Promise.withResolvers<void>()
  try {
    server.once('error', reject).listen(place, resolve)
    await promise
  } catch (cause) {
    throw listenFailure(cause, `${place.host}:${place.port} (${setting})`)
  } finally {
    server.off('error', reject)
  }
  return server.address() as AddressInfo
}
