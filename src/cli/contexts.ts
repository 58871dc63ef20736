/** The clouds that this user works with: one file in the XDG configuration folder, readable only by the user. */
import { dirname, join } from 'node:path'
import { z } from 'zod'
import { CodedError, firstProblem } from '../protocol/errors.ts'
import { unreadableReason } from '../protocol/file-reasons.ts'
import { parseJson } from '../protocol/parse-json.ts'
import { nearest } from '../settings/nearest.ts'
import { makePrivateDirectory, writeFileAtomically } from './atomic-write.ts'
import { underFileLock } from './file-lock.ts'
import type { Io } from './io.ts'
import { userDirectory } from './user-directory.ts'

const contextForm = z.strictObject({
  url: z.string().refine((text) => URL.canParse(text), 'must be a URL'),
  /** Absolute path; absent: the signed-in user. */
  adminKey: z.string().optional(),
  kid: z.string().optional(),
  caFile: z.string().optional(),
})
export type Context = z.infer<typeof contextForm>

const contextsForm = z.strictObject({ current: z.string().nullable(), contexts: z.record(z.string(), contextForm) })
export type Contexts = z.infer<typeof contextsForm>

export function readContexts(io: Io): Contexts {
  const path = contextsFile(io)
  const text = readIfExists(path, io)
  if (text === null) return { current: null, contexts: {} }
  const json = parseJson(text)
  const parsed = contextsForm.safeParse(json)
  if (parsed.success) return parsed.data
  const problem = json === undefined ? `${path} is not JSON` : firstProblem(parsed.error, path)
  const remedy = 'Correct the file, or delete it and add the contexts again (`tallygate context add`).'
  throw new CodedError('CONFIG_INVALID', `${problem}.`, { details: { remedy } })
}

/** A file that cannot be read is an error: the caller would replace it, and it may contain contexts. @throws CodedError CONFIG_UNREADABLE */
function readIfExists(path: string, io: Io): string | null {
  try {
    return io.readText(path)
  } catch (cause) {
    if (['ENOENT', 'ENOTDIR'].includes(String((cause as NodeJS.ErrnoException).code))) return null
    throw new CodedError('CONFIG_UNREADABLE', `${path}: ${unreadableReason(cause)}.`, { cause })
  }
}

/** Commands may run at once. @param change of what is stored at that moment */
export async function changeContexts(io: Io, change: (stored: Contexts) => Contexts): Promise<Contexts> {
  const path = contextsFile(io)
  makePrivateDirectory(dirname(path))
  return underFileLock(
    path.replace(/json$/, 'lock'),
    async () => {
      const contexts = change(readContexts(io))
      await writeFileAtomically(path, `${JSON.stringify(contexts, null, 2)}\n`)
      return contexts
    },
    io,
  )
}

export function contextNamed(name: string, { contexts }: Contexts): Context {
  const found = Object.hasOwn(contexts, name) ? contexts[name] : undefined
  if (found !== undefined) return found
  const close = nearest(name, Object.keys(contexts))
  const help = close === undefined ? 'List them with tallygate context list.' : `Did you mean ${close}?`
  throw new CodedError('USAGE', `There is no context ${name}. ${help}`)
}

function contextsFile(io: Io): string {
  return join(userDirectory('XDG_CONFIG_HOME', io), 'contexts.json')
}
