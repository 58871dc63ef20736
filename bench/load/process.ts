/** The load generator as a process of its own, so that it shares no event loop with what it loads. Orders come by IPC. */
import { type LoadOptions, closedLoop } from './closed-loop.ts'

process.on('message', (options: LoadOptions) => {
  closedLoop(options).then(
    (report) => process.send?.({ report }),
    (error: unknown) => process.send?.({ failure: error instanceof Error ? error.message : String(error) }),
  )
})
process.on('disconnect', () => process.exit(0))
