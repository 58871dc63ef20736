/** Name or address of the host, an IPv6 address without its brackets. */
export function hostOf({ hostname }: URL): string {
  return hostname.replace(/^\[(.*)\]$/, '$1')
}

/** @param host name or address, an IPv6 address without its brackets */
export function hostInUrl(host: string): string {
  return host.includes(':') ? `[${host}]` : host
}
