// File systems for one test, which is skipped where none can be mounted. They are unmounted when it ends.
import { execFileSync } from 'node:child_process'
import { rmSync, statfsSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import { onTestFinished, type TestContext } from 'vitest'
import { temporaryDirectory } from '../agent/harness.ts'

type Skip = TestContext['skip']

/** An empty file system of that size. */
export function smallDisk(skip: Skip, size: string): string {
  return inMemory(skip, 'tmpfs', '-o', `size=${size}`)
}

/** An empty file system without a limit, which reports no size. */
export function unlimitedDisk(skip: Skip): string {
  return inMemory(skip, 'ramfs')
}

function inMemory(skip: Skip, type: string, ...options: readonly string[]): string {
  const path = temporaryDirectory()
  mount(skip, '-t', type, ...options, type, path)
  onTestFinished(() => void execFileSync('umount', ['-l', path]))
  return path
}

/** Another path of the directory, with a read-only file system. */
export function readOnlyView(skip: Skip, directory: string): string {
  const path = temporaryDirectory()
  mount(skip, '--bind', directory, path)
  onTestFinished(() => void execFileSync('umount', ['-l', path]))
  mount(skip, '-o', 'remount,ro,bind', path)
  return path
}

/** Uses all free space but `left` bytes; returns a function that frees it. */
export function fillDisk(path: string, left = 0): () => void {
  const { bavail, bsize } = statfsSync(path)
  const filler = join(path, 'filler')
  writeFileSync(filler, Buffer.alloc(bavail * bsize - left))
  return () => rmSync(filler)
}

function mount(skip: Skip, ...args: readonly string[]): void {
  try {
    execFileSync('mount', args, { stdio: 'pipe' })
  } catch (error) {
    skip(`no file system can be mounted here: ${(error as Error).message}`)
  }
}
