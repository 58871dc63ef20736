/** Passed to the baseline's process as JSON in the first argument. */
export interface FloorOptions {
  readonly stack: FloorStack
  readonly socketPath: string
  readonly databasePath: string
  readonly rowBytes: number
  readonly answerBytes: number
}

/** The first is the agent's own. */
export const FLOOR_STACKS = ['agent-socket', 'net', 'node-http', 'fastify'] as const
export type FloorStack = (typeof FLOOR_STACKS)[number]

export const FLOOR_MARK = '"floor":"'
