/** `tallygate cloud`: the twin of the service, until a signal stops it; SIGHUP makes it read its settings again. It logs to standard output, one JSON line each. */
import type { Command } from 'commander'
import { cloudOptions } from '../../cloud/settings.ts'
import type { Io } from '../io.ts'
import { serviceCommand, settingsOf } from '../service-settings.ts'

export function command(io: Io): Command {
  return serviceCommand('cloud', cloudOptions)
    .description('Runs the cloud twin. Its first start makes an administration key and logs where it is.')
    .action(async (_flags: unknown, command: Command) => {
      const { runCloud } = await import('../../cloud/main.ts')
      const { serviceManager } = await import('../service-manager/service-manager.ts')
      const load = () => settingsOf(command, cloudOptions, io)
      await runCloud({ load, stop: io.stop, onReload: io.onHangup }, serviceManager(io.env, process.pid))
    })
}
