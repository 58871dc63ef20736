export const LOCAL_HEADERS = {
  /** Requests: a UUID that the program chooses, and the number of the request under it. */
  session: 'x-tallygate-session',
  request: 'x-tallygate-request',
  /** Requests: `connection` ends the session with the connection. */
  bound: 'x-tallygate-bound',
  durability: 'x-tallygate-durability',
  policyRevision: 'x-tallygate-policy-revision',
  warnings: 'x-tallygate-warnings',
  advice: 'x-tallygate-advice',
  heartbeat: 'x-tallygate-heartbeat-ms',
} as const
