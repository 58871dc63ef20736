import type { Command } from 'commander'
import { agentOptions } from '../../agent/settings.ts'
import type { Io } from '../io.ts'
import { serviceCommand, settingsOf } from '../service-settings.ts'

export function command(io: Io): Command {
  return serviceCommand('agent', agentOptions)
    .description('Runs the agent of this device. It decides access requests on its Unix socket, online and offline.')
    .action(async (_flags: unknown, command: Command) => {
      const { runAgent } = await import('../../agent/main.ts')
      const { serviceManager } = await import('../service-manager/service-manager.ts')
      const load = () => settingsOf(command, agentOptions, io)
      const running = { load, stop: io.stop(), onReload: io.onHangup }
      const supervisor = serviceManager(io.env, process.pid)
      const { passedSocket } = supervisor
      await runAgent(running, passedSocket === null ? { supervisor } : { supervisor, passedSocket })
    })
}
