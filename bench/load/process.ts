/** The load generator as a process of its own, so that it shares no event loop with what it loads. Orders come by IPC. */
import { type LoadOrder, closedLoop } from './closed-loop.ts'

process.on('message', (order: LoadOrder) => {
  closedLoop(order).then(
    (report) => process.send?.({ report }),
    (error: unknown) => process.send?.({ failure: error instanceof Error ? error.message : String(error) }),
  )
})
process.on('disconnect', () => process.exit(0))
