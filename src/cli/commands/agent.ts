import type { Command } from 'commander'
import { agentOptions } from '../../agent/settings.ts'
import { runService } from '../../platform/run-service.ts'
import type { Io } from '../io.ts'
import { serviceCommand, settingsOf } from '../service-settings.ts'

export function command(io: Io): Command {
  return serviceCommand('agent', agentOptions)
    .description('Runs the agent of this device. It decides access requests on its Unix socket, online and offline.')
    .action(async (_flags: unknown, command: Command) => {
      const { composeAgent } = await import('../../agent/compose.ts')
      const { serviceManager } = await import('../service-manager/service-manager.ts')
      const load = () => settingsOf(command, agentOptions, io)
      const supervisor = serviceManager(io.env, process.pid)
      const { passedSocket } = supervisor
      const given = passedSocket === null ? { supervisor } : { supervisor, passedSocket }
      await runService({ load, stop: io.stop(), onReload: io.onHangup }, (settings) => composeAgent(settings, given))
    })
}
