import { readFileSync } from 'node:fs'
import { run } from '../../src/cli/program.ts'
import type { World } from '../../src/cli/io.ts'
import type { Twin } from '../cloud/harness.ts'

export interface Ran {
  readonly code: number
  readonly out: string
  readonly err: string
}

/** Runs one command line in this process, in a world made of `changes`. */
export async function tallygate(args: readonly string[], changes: Partial<World> = {}): Promise<Ran> {
  let [out, err] = ['', '']
  const code = await run(args, {
    stdout: { write: (text) => (out += text) },
    stderr: { write: (text) => (err += text) },
    env: {},
    now: () => 1_800_000_000_000,
    readText: () => {
      throw Object.assign(new Error('no such file'), { code: 'ENOENT' })
    },
    ask: () => null,
    stop: () => new AbortController().signal,
    onHangup: () => undefined,
    ...changes,
  })
  return { code, out, err }
}

/** The world of an administrator of a cloud. @param textOf content of a file; undefined: as on the disk */
export function administering(twin: Twin, textOf: (path: string) => string | undefined = () => undefined) {
  return {
    now: () => twin.now,
    env: { TALLYGATE_URL: twin.cloud.address, TALLYGATE_ADMIN_KEY: twin.cloud.administrationKeyFile },
    readText: (path: string) => textOf(path) ?? readFileSync(path, 'utf8'),
  } satisfies Partial<World>
}
