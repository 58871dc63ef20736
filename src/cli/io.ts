/** What a command has of the outside world. It is an argument, so that a test can give them another one. */
export interface World {
  readonly stdout: Output
  readonly stderr: Output
  readonly env: Readonly<Record<string, string | undefined>>
  /** POSIX ms. */
  readonly now: () => number
  /** Text of a file, or throws. */
  readonly readText: (path: string) => string
  /**
   * From here on the first signal by which the user or the service manager asks the process to end aborts what this returns,
   * and the command has to end by itself. The process of a command that never calls it ends at once.
   */
  readonly stop: () => AbortSignal
  /** From here on SIGHUP calls the listener; otherwise it asks the process to end. */
  readonly onHangup: (listener: () => void) => void
}

export interface Io extends World {
  /** Ends the command with this code once it is done, where nothing went wrong but the answer is not a plain yes. */
  readonly exitWith: (code: number) => void
}

export interface Output {
  readonly isTTY?: boolean
  readonly columns?: number
  write(text: string): unknown
}
