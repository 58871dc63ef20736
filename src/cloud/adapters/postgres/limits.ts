/** Every limit on the way to PostgreSQL. Each wait ends by itself, so that a request is answered whatever the server does. */

/** Connections of one node. Work beyond that waits for one. The server needs room for all nodes: `max_connections`. */
export const CONNECTIONS_MAX = 10

/** How long work waits for a connection, made or free. */
export const CONNECT_TIMEOUT_MS = 5_000

/** The server ends a statement after this time. */
export const STATEMENT_TIMEOUT_MS = 10_000

/** The server ends a wait for a lock after this time: somebody holds a hot row for too long. */
export const LOCK_TIMEOUT_MS = 5_000

/** The server ends a transaction whose node says nothing for so long, and frees what it has locked. */
export const SILENCE_TIMEOUT_MS = 15_000

/** A server that has not answered a statement by then is lost to the node: it is longer than the server's own limit. */
export const ANSWER_TIMEOUT_MS = STATEMENT_TIMEOUT_MS + 5_000

/** How often a transaction is run, all in all, when the database asks it to start over. */
export const RUNS_MAX = 6

/** Longest pause before the second run; it doubles from there. */
export const RERUN_PAUSE_MS = 5

/** How often the server is asked what became of a commit whose answer was lost. */
export const OUTCOME_QUESTIONS_MAX = 10

/** Pause before each question. */
export const OUTCOME_PAUSE_MS = 300

/** Oldest server that has all that is used here. */
export const SERVER_VERSION_MIN = 14
