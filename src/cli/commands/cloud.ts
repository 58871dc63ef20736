/** `tallygate cloud`: the twin of the service, until a signal stops it. It logs to standard output, one JSON line each. */
import type { Command } from 'commander'
import { cloudOptions } from '../../cloud/settings.ts'
import type { Io } from '../io.ts'
import { serviceCommand, settingsOf } from '../service-settings.ts'

export function command(io: Io): Command {
  return serviceCommand('cloud', cloudOptions)
    .description('Runs the cloud twin. Its first start makes an administration key and logs where it is.')
    .action(async (_flags: unknown, command: Command) => {
      const settings = settingsOf(command, cloudOptions, io)
      const { runCloud } = await import('../../cloud/main.ts')
      const { serviceManager } = await import('../service-manager/service-manager.ts')
      await runCloud(settings, io.stop, serviceManager(io.env, process.pid))
    })
}
