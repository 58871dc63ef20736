/** The agent's last log lines from memory: one JSON object per line. */

/** `GET` on the agent's socket; NDJSON, oldest line first. */
export const AGENT_LOG_PATH = '/tallygate/v1/log'
