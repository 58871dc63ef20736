import { BlockList, isIP } from 'node:net'

const LOOPBACK = new BlockList()
LOOPBACK.addSubnet('127.0.0.0', 8, 'ipv4')
LOOPBACK.addAddress('::1', 'ipv6')

/** Whether a host is this machine. @param host a name or an address, of a URL also in brackets */
export function isLoopback(host: string): boolean {
  const name = host.replaceAll(/^\[|\]$/g, '')
  return name === 'localhost' || contains(LOOPBACK, name)
}

export function contains(network: BlockList, host: string): boolean {
  const kind = isIP(host)
  return kind !== 0 && network.check(host, `ipv${kind}` as 'ipv4')
}
