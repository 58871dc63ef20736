/** Limits for PostgreSQL. Every wait is bounded, so that each request gets a response. */
export interface Limits {
  /** Connections per node; further work waits. The server's `max_connections` must cover all nodes. */
  readonly connectionsMax: number
  /** Longest wait for a new or free connection. */
  readonly connectTimeoutMs: number
  /** Server-side statement timeout. */
  readonly statementTimeoutMs: number
  /** Server-side lock timeout. */
  readonly lockTimeoutMs: number
  /** Server-side timeout of idle transactions, which releases their locks. */
  readonly silenceTimeoutMs: number
  /** After this time without a response, the node gives up the connection. Above the server's own limits. */
  readonly answerTimeoutMs: number
  /** Maximum runs of a transaction, including the first. */
  readonly runsMax: number
  /** Longest pause before the second run; doubles each time. */
  readonly rerunPauseMs: number
  /** Maximum attempts to look up an unanswered commit. */
  readonly outcomeQuestionsMax: number
  /** Pause between these attempts. */
  readonly outcomePauseMs: number
  /** Longest time for all of them. */
  readonly outcomeTimeoutMs: number
}

export const LIMITS: Limits = {
  connectionsMax: 10,
  connectTimeoutMs: 5_000,
  statementTimeoutMs: 10_000,
  lockTimeoutMs: 5_000,
  silenceTimeoutMs: 15_000,
  answerTimeoutMs: 15_000,
  runsMax: 6,
  rerunPauseMs: 5,
  outcomeQuestionsMax: 10,
  outcomePauseMs: 300,
  outcomeTimeoutMs: 20_000,
}

/** Oldest supported major version of PostgreSQL. */
export const SERVER_VERSION_MIN = 14
