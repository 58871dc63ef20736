/** What the floor is to do, handed to its process as JSON in the first argument. */
export interface FloorOrder {
  readonly stack: FloorStack
  readonly socketPath: string
  readonly databasePath: string
  /** Of the text of one row. */
  readonly rowBytes: number
  /** Of the JSON body of one answer. */
  readonly answerBytes: number
}

export const FLOOR_STACKS = ['node-http', 'fastify', 'net'] as const
export type FloorStack = (typeof FLOOR_STACKS)[number]

/** How the load generator knows an answer of the floor. */
export const FLOOR_MARK = '"floor":"'
