const USAGE_EXIT = 64

/**
 * Reads the arguments of a development script. Ends the process after printing the usage if they contain --help, and with exit code
 * 64 if `read` throws.
 */
export function orUsage<T>(usage: string, read: () => T): T {
  if (process.argv.includes('--help')) {
    process.stdout.write(usage)
    process.exit()
  }
  try {
    return read()
  } catch (error) {
    process.stderr.write(`${error instanceof Error ? error.message : String(error)}\n\n${usage}`)
    process.exit(USAGE_EXIT)
  }
}
