/** Every limit on the way to PostgreSQL. Each wait ends by itself, so that a request is answered whatever the server does. */
export interface Limits {
  /** Connections of one node; work beyond that waits for one. The server needs room for all nodes: `max_connections`. */
  readonly connectionsMax: number
  /** How long work waits for a connection, made or free. */
  readonly connectTimeoutMs: number
  /** The server ends a statement after this time. */
  readonly statementTimeoutMs: number
  /** The server ends a wait for a lock after this time: somebody holds a hot row for too long. */
  readonly lockTimeoutMs: number
  /** The server ends a transaction whose node says nothing for so long, and frees what it has locked. */
  readonly silenceTimeoutMs: number
  /** A server that has not answered by then is lost to the node. Above the server's own limits. */
  readonly answerTimeoutMs: number
  /** How often a transaction is run, all in all, when the database asks it to start over. */
  readonly runsMax: number
  /** Longest pause before the second run; it doubles from there. */
  readonly rerunPauseMs: number
  /** How often the server is asked what became of a commit whose answer was lost. */
  readonly outcomeQuestionsMax: number
  /** Between two questions. */
  readonly outcomePauseMs: number
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
}

/** Oldest server that has all that is used here. */
export const SERVER_VERSION_MIN = 14
