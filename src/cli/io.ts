/** The outside world of a command, injected so that tests can replace it. */
export interface World {
  readonly stdout: Output
  readonly stderr: Output
  readonly env: Readonly<Record<string, string | undefined>>
  readonly now: () => number
  /** `FILES`: only a regular file of at most 4 MiB. Default: also a terminal, a pipe or a socket. */
  readonly readText: (path: string, allowed?: 'FILES') => string
  /** Asks the user and returns the answer; null: there is no terminal to ask on. */
  readonly ask: (question: string) => Promise<string> | null
  /** From the first call on, the first termination signal aborts it, and the command must end by itself. */
  readonly stop: () => AbortSignal
  /** Once called, SIGHUP calls the listener instead of ending the process. */
  readonly onHangup: (listener: () => void) => void
}

export interface Io extends World {
  /** Sets the exit code of a command that did not fail but has a negative result. */
  readonly exitWith: (code: number) => void
}

export interface Output {
  readonly isTTY?: boolean
  readonly columns?: number
  write(text: string): unknown
}

/** Exit code of a command that Ctrl-C has ended before it was done. Shell convention: 128 + SIGINT. */
export const INTERRUPTED = 130
