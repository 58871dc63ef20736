/**
 * Runs a program under strace. The tracer logs a call before its thread continues; so a call logged as finished before
 * another began did finish before it.
 */
import { spawn, spawnSync } from 'node:child_process'
import { once } from 'node:events'
import { readdirSync } from 'node:fs'
import { createInterface } from 'node:readline'
import type { Launch } from '../site/service.ts'

const CALLS = [
  ...['open', 'openat', 'openat2', 'creat', 'close', 'dup', 'dup2', 'dup3'],
  ...['write', 'writev', 'pwrite64', 'pwritev', 'pwritev2', 'sendto', 'sendmsg', 'sendmmsg', 'sendfile', 'splice'],
  ...['copy_file_range', 'ftruncate', 'truncate', 'fallocate', 'mmap', 'io_uring_setup'],
  ...['fsync', 'fdatasync', 'sync_file_range', 'syncfs', 'sync', 'msync'],
  ...['link', 'linkat', 'symlink', 'symlinkat', 'rename', 'renameat', 'renameat2', 'unlink', 'unlinkat', 'rmdir'],
  ...['mkdir', 'mkdirat'],
]

/** Longest logged text, bytes: more than any message of the protocol. */
const TEXT_MAX = 8 * 1024 * 1024

/** Why tracing is impossible; undefined: it is possible. */
export function whyNoTrace(): string | undefined {
  const { error, status, stderr } = spawnSync('strace', ['-f', '-o', '/dev/null', 'true'], { encoding: 'utf8' })
  if (error !== undefined) return 'strace is not installed'
  return status === 0 ? undefined : `strace may not trace here: ${stderr.trim()}`
}

/** The traced process is the child itself, so that it receives signals; it ends when the log is complete. */
export function traced(log: string): Launch {
  const arch = process.arch === 'arm64' ? ARM64_LACKS : new Set<string>()
  const calls = CALLS.filter((call) => !arch.has(call))
  // Writes through shared memory rings are not system calls: disable rings.
  const options = ['-D', '-f', '-yy', '-q', '--seccomp-bpf', '-a1', '-einject=io_uring_setup:error=ENOSYS']
  return { under: ['strace', ...options, `-s${TEXT_MAX}`, '-o', log, `-etrace=${calls.join(',')}`] }
}

/** Kills the process when a thread begins the `number`th call of this kind. */
export function killedAt(call: string, number: number): Launch {
  const options = ['-D', '-f', '-q', '-o', '/dev/null', `-etrace=${call}`]
  return { under: ['strace', ...options, `-einject=${call}:signal=SIGKILL:when=${number}`] }
}

export interface Fault {
  readonly pid: number
  readonly calls: string
  readonly error: string
  readonly path: string
}

/** Makes these calls of a running process fail without effect, from when this resolves until it ends or `end` is called. */
export async function failingCalls({ pid, calls, error, path }: Fault): Promise<{ end(): Promise<void> }> {
  const options = ['-f', '-s0', '-P', path, `-etrace=${calls}`, `-einject=${calls}:error=${error}`]
  const tracer = spawn('strace', [...options, '-p', String(pid)], { stdio: ['ignore', 'ignore', 'pipe'] })
  const gone = once(tracer, 'close')
  const lines = createInterface({ input: tracer.stderr })
  let last = ''
  lines.on('line', (line) => {
    last = line
  })
  const linesWith = (text: string, enough: () => number): Promise<void> =>
    new Promise((resolve, reject) => {
      tracer.once('error', reject)
      gone.then(() => reject(new Error(`strace ended: ${last}`)), reject)
      let count = 0
      lines.on('line', (line) => {
        if (line.includes(text)) count += 1
        if (count >= enough()) resolve()
      })
    })
  await linesWith('attached', () => 1)
  return {
    // A tracer that leaves during a call makes it fail with another error: stopped threads are in no call.
    end: async () => {
      const stopped = linesWith('stopped by SIGSTOP', () => readdirSync(`/proc/${pid}/task`).length)
      process.kill(pid, 'SIGSTOP')
      await stopped
      tracer.kill('SIGINT')
      await gone
      process.kill(pid, 'SIGCONT')
    },
  }
}

const ARM64_LACKS = new Set([
  'open',
  'creat',
  'dup2',
  'link',
  'symlink',
  'rename',
  'renameat',
  'unlink',
  'rmdir',
  'mkdir',
])
