/** The load generator as a separate process, to share no event loop with its target. Requests arrive by IPC. */
import { type LoadOptions, closedLoop } from './closed-loop.ts'

process.on('message', (options: LoadOptions) => {
  closedLoop(options).then(
    (report) => process.send?.({ report }),
    (error: unknown) => process.send?.({ failure: error instanceof Error ? error.message : String(error) }),
  )
})
process.on('disconnect', () => process.exit(0))
