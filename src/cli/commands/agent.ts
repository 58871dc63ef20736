import type { Command } from 'commander'
import type { Overrides } from '../../agent/compose.ts'
import { agentOptions } from '../../agent/settings.ts'
import { runService } from '../../platform/run-service.ts'
import type { Io } from '../io.ts'
import { serviceCommand, settingsOf } from '../service-settings.ts'

export function command(io: Io): Command {
  return serviceCommand('agent', agentOptions)
    .description('Runs the agent of this device. It decides access requests on its Unix socket, online and offline.')
    .action(async (_flags: unknown, command: Command) => {
      const { composeAgent } = await import('../../agent/compose.ts')
      const { reportLongStart } = await import('../service-manager/long-start.ts')
      const { serviceManager } = await import('../service-manager/service-manager.ts')
      const load = () => settingsOf(command, agentOptions, io)
      const supervisor = serviceManager(io.env, process.pid)
      const { passedSocket, notifyPath } = supervisor
      const given: Overrides = {
        supervisor,
        reportLongStart: (start) => reportLongStart(start, { passedSocket, notifyPath }),
        ...(passedSocket === null ? {} : { passedSocket }),
      }
      await runService({ load, stop: io.stop(), onReload: io.onHangup }, (settings) => composeAgent(settings, given))
    })
}
