/** Why a connection over the network failed, by errno, as the end of a sentence without a period. */
export const NETWORK_REASONS: Readonly<Record<string, string>> = {
  ECONNREFUSED: 'no process is listening there',
  ECONNRESET: 'the connection was reset',
  EPIPE: 'the connection was closed',
  ENOTFOUND: 'the host name does not exist',
  EAI_AGAIN: 'the name server does not respond',
  ETIMEDOUT: 'there was no response in time',
  EHOSTUNREACH: 'there is no route to the host',
  ENETUNREACH: 'there is no route to the network',
}
