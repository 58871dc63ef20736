import { resolve } from 'node:path'
import { Command } from 'commander'
import { type AdministratorFlags, keyToken } from '../administrator.ts'
import { cloudArgument, contextArgument, readAuthority } from '../arguments.ts'
import { changeContexts, contextNamed, readContexts } from '../contexts.ts'
import { examples } from '../examples.ts'
import type { Io } from '../io.ts'
import { jsonLine, table, writeLines } from '../lines.ts'
import { type ListFlags, widthFor, withListOptions } from '../lists.ts'

type AddFlags = AdministratorFlags & { readonly url: string }

export function command(io: Io): Command {
  const context = new Command('context').description(
    'Manages contexts: the address of a cloud, the key to administer it with, and the authority of its certificate. Commands for administrators use the current context.',
  )
  context
    .command('add')
    .description('Adds a context, or replaces the one with this name. The first one becomes the current one.')
    .argument('<name>', 'name of the context', contextArgument)
    .requiredOption('--url <url>', 'address of the cloud; without a path, /dynamicmonetization is added', cloudArgument)
    .option('--admin-key <file>', 'private administration key (PEM); default: the user whom tallygate login signs in')
    .option('--kid <id>', 'id of the administration key (default: its RFC 7638 thumbprint)')
    .option('--ca-file <file>', "authority of the cloud's certificate (PEM), besides those of the system")
    .action((name: string, flags: AddFlags) => add(name, flags, io))
  const listed = context.command('list').description('Lists the contexts. Keys are not shown, only their files.')
  withListOptions(listed, 'print one JSON document per line for each context').action((flags: ListFlags) =>
    list(flags, io),
  )
  context
    .command('use')
    .description('Makes a context the current one.')
    .argument('<name>', 'name of the context')
    .action(async (name: string) => {
      const stored = await changeContexts(io, (before) => {
        contextNamed(name, before)
        return { ...before, current: name }
      })
      writeLines(io.stdout, [`Commands use ${name} now: ${contextNamed(name, stored).url}.`])
    })
  context
    .command('remove')
    .description('Removes a context. Its key file stays.')
    .argument('<name>', 'name of the context')
    .action(async (name: string) => {
      const { current } = await changeContexts(io, (stored) => {
        contextNamed(name, stored)
        const { [name]: _removed, ...others } = stored.contexts
        return { current: stored.current === name ? null : stored.current, contexts: others }
      })
      const next =
        current === null
          ? 'No context is the current one. Choose one with: tallygate context use <name>'
          : `Commands use ${current}.`
      writeLines(io.stdout, [`Removed ${name}. ${next}`])
    })
  return examples(context, [
    'tallygate context add prod --url https://cloud.example --admin-key administration-key.pem',
    'tallygate context use prod',
    'tallygate devices list',
    'TALLYGATE_CONTEXT=test tallygate devices list',
  ])
}

/** Checks the files first: a wrong one would fail with the next command. */
async function add(name: string, { url, adminKey, kid, caFile }: AddFlags, io: Io): Promise<void> {
  if (adminKey !== undefined) await keyToken(adminKey, kid, io)
  if (caFile !== undefined) readAuthority(io, caFile)
  const added = {
    url,
    ...(adminKey === undefined ? {} : { adminKey: resolve(adminKey) }),
    ...(kid === undefined ? {} : { kid }),
    ...(caFile === undefined ? {} : { caFile: resolve(caFile) }),
  }
  let done = 'Added'
  const { current } = await changeContexts(io, (stored) => {
    if (Object.hasOwn(stored.contexts, name)) done = 'Replaced'
    return { current: stored.current ?? name, contexts: { ...stored.contexts, [name]: added } }
  })
  const next =
    current === name
      ? 'Commands use it now.'
      : `Commands use ${current ?? ''} until you run: tallygate context use ${name}`
  writeLines(io.stdout, [`${done} ${name}: ${url}. ${next}`])
}

function list(flags: ListFlags, io: Io): void {
  const { current, contexts } = readContexts(io)
  const all = Object.entries(contexts).map(([name, context]) => ({ name, current: name === current, ...context }))
  if (flags.json === true) {
    writeLines(io.stdout, all.map(jsonLine))
    return
  }
  const rows = all.map(({ name, current: isCurrent, url, adminKey = 'signed-in user', caFile = '' }) => [
    isCurrent ? '*' : '',
    name,
    url,
    adminKey,
    caFile,
  ])
  const empty = 'No contexts. Add one with: tallygate context add <name> --url <url> --admin-key <file>'
  writeLines(io.stdout, table(['', 'NAME', 'URL', 'KEY', 'CA FILE'], rows, empty, widthFor(flags, io)))
}
