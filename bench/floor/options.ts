/** What the floor is to do, handed to its process as JSON in the first argument. */
export interface FloorOptions {
  readonly stack: FloorStack
  readonly socketPath: string
  readonly databasePath: string
  /** Of the text of one row. */
  readonly rowBytes: number
  /** Of the JSON body of one answer. */
  readonly answerBytes: number
}

/** The first is the agent's own. */
export const FLOOR_STACKS = ['agent-socket', 'net', 'node-http', 'fastify'] as const
export type FloorStack = (typeof FLOOR_STACKS)[number]

/** How the load generator knows an answer of the floor. */
export const FLOOR_MARK = '"floor":"'
