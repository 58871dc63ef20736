import { BlockList, isIP } from 'node:net'

const LOOPBACK = new BlockList()
LOOPBACK.addSubnet('127.0.0.0', 8, 'ipv4')
LOOPBACK.addAddress('::1', 'ipv6')

/** Whether a host is this machine. @param host a name or an address, of a URL also in brackets */
export function isLoopback(host: string): boolean {
  const name = host.replaceAll(/^\[|\]$/g, '')
  return name === 'localhost' || contains(LOOPBACK, name)
}

/** Whether a Host header names this machine. That of a request by a foreign web page does not, wherever its name leads. */
export function isLoopbackName(host = ''): boolean {
  return isLoopback(host.replace(/:\d{1,5}$/, '').toLowerCase())
}

export function contains(network: BlockList, host: string): boolean {
  const kind = isIP(host)
  return kind !== 0 && network.check(host, `ipv${kind}` as 'ipv4')
}
