/** The last log lines of an agent, as it keeps them in memory and tells them at its socket: one JSON object per line. */

/** `GET` on the agent's socket; the answer is NDJSON, oldest line first. */
export const AGENT_LOG_PATH = '/tallygate/v1/log'
