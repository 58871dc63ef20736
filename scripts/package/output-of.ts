/** Runs a program of the build and ends the build with its words when it fails. */
import { execFile } from 'node:child_process'
import { promisify } from 'node:util'

export interface How {
  readonly cwd?: string
  /** Besides those of this process. */
  readonly env?: Readonly<Record<string, string>>
}

/** What it wrote to standard output. @throws Error with what it said */
export async function outputOf(program: string, args: readonly string[], { cwd, env }: How = {}): Promise<string> {
  const options = {
    maxBuffer: 64 * 1024 * 1024,
    env: { ...process.env, ...env },
    ...(cwd === undefined ? {} : { cwd }),
  }
  try {
    return (await promisify(execFile)(program, [...args], options)).stdout
  } catch (error) {
    const { stdout = '', stderr = '', message } = error as { stdout?: string; stderr?: string; message: string }
    throw new Error(`${message}\n${stdout}${stderr}`, { cause: error })
  }
}
