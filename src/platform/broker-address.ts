import { hostOf } from './host-of.ts'

const PROTOCOLS = ['mqtt', 'mqtts', 'ws', 'wss'] as const

interface BrokerAddress {
  readonly protocol: (typeof PROTOCOLS)[number]
  readonly hostname: string
  readonly host: string
  readonly port?: number
  /** Of a WebSocket, with its query. */
  readonly path?: string
}

/**
 * The address of a broker as options of the MQTT client, which would parse a URL with Node's deprecated `url.parse`. User
 * and password in the URL are ignored.
 *
 * @throws TypeError for another address
 */
export function brokerAddress(url: string): BrokerAddress {
  const parsed = new URL(url)
  const { protocol: scheme, hostname, port, pathname, search } = parsed
  const protocol = PROTOCOLS.find((each) => `${each}:` === scheme)
  if (protocol === undefined) throw new TypeError(`${scheme} is not a scheme of MQTT; use ${PROTOCOLS.join(', ')}`)
  const isWebSocket = protocol.startsWith('ws')
  // The client makes a URL from it for a WebSocket, and a socket otherwise.
  const host = isWebSocket ? hostname : hostOf(parsed)
  return {
    protocol,
    hostname: host,
    host,
    ...(port === '' ? {} : { port: Number(port) }),
    ...(isWebSocket ? { path: `${pathname}${search}` } : {}),
  }
}
