// Runs one of the project's tools from node_modules/.bin with the pinned Node first on its path.
import { spawn } from 'node:child_process'
import { delimiter, join } from 'node:path'
import { text } from 'node:stream/consumers'

/**
 * The compiler, as a path from node_modules/.bin. `typescript` itself stays at the last version with a JavaScript
 * interface, which dependency-cruiser needs; both packages have a command `tsc`, so `.bin/tsc` may be either.
 */
export const compiler = '../typescript-7/bin/tsc'

/** What a check found: `output` is what a person needs to see when it is not ok. */
export interface Outcome {
  ok: boolean
  output: string
}

/**
 * Runs `tool` in `root` and waits for its end. `ok` means exit code 0; `output` holds stdout, then stderr.
 * A tool that cannot be started is an outcome that is not ok.
 */
export async function run(root: string, tool: string, args: string[]): Promise<Outcome & { stdout: string }> {
  const bin = join(root, 'node_modules', '.bin')
  const child = spawn(join(bin, tool), args, {
    cwd: root,
    env: { ...process.env, PATH: `${bin}${delimiter}${process.env['PATH'] ?? ''}` },
    stdio: ['ignore', 'pipe', 'pipe'],
  })
  const ended = new Promise<{ ok: boolean; why: string }>((resolve) => {
    child.once('error', (error) => resolve({ ok: false, why: `${tool}: ${error.message}\n` }))
    child.once('close', (code, signal) =>
      resolve({ ok: code === 0, why: signal === null ? '' : `${tool} ended by ${signal}\n` }),
    )
  })
  const [stdout, stderr, { ok, why }] = await Promise.all([text(child.stdout), text(child.stderr), ended])
  return { ok, stdout, output: `${stdout}${stderr}${why}` }
}
