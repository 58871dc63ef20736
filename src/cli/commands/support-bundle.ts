import { promisify } from 'node:util'
import { gzip } from 'node:zlib'
import { Command } from 'commander'
import { type SocketFlags, withSocketFlag } from '../local-agent.ts'
import { gather } from '../doctor/gather.ts'
import type { Io } from '../io.ts'
import { writeLines } from '../lines.ts'
import { shellWord } from '../../protocol/shell-quoted.ts'
import { contents, isPartial } from '../support/contents.ts'
import { tar } from '../support/tar.ts'
import { writeFileAtomically } from '../atomic-write.ts'

interface BundleFlags extends SocketFlags {
  readonly output?: string
  readonly network: boolean
}

export function command(io: Io): Command {
  return withSocketFlag(new Command('support-bundle'))
    .description(
      'Packs status, checks, settings, versions, log lines, and the schema and heads of the ledger into one tar.gz file, without keys, tokens or passwords. Works whether or not the agent runs.',
    )
    .option('--output <file>', 'output file (default: tallygate-support-<time>.tar.gz in the current directory)')
    .option('--no-network', 'do not contact name servers, the cloud or the broker')
    .action(async (flags: BundleFlags) => {
      const stamp = new Date(io.now()).toISOString().replaceAll(/[:.]/g, '-')
      const path = flags.output ?? `tallygate-support-${stamp}.tar.gz`
      const bundle = { bytes: 0, files: 0, isPartial: false }
      // The output file is created before the data is gathered, which may take long.
      await writeFileAtomically(
        path,
        (async function* () {
          const observations = await gather(io, flags)
          const files = await contents(observations, flags, io)
          const packed = await promisify(gzip)(tar(files, observations.now))
          Object.assign(bundle, { bytes: packed.length, files: files.length, isPartial: isPartial(observations) })
          yield packed
        })(),
      )
      writeLines(io.stdout, [
        `${path}: ${bundle.bytes} bytes, ${bundle.files} files. Review it before you send it: tar -xOzf ${shellWord(path)} | less`,
      ])
      if (bundle.isPartial)
        io.stderr.write(
          'This user may not read all data of the agent: run the command as root for a complete bundle.\n',
        )
    })
}
