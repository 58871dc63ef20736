/** `GET` on the agent's socket; NDJSON, oldest line first. */
export const AGENT_LOG_PATH = '/tallygate/v1/log'
