// File systems for one test, which is skipped where none can be mounted. They are unmounted when it ends.
import { execFileSync } from 'node:child_process'
import { rmSync, statfsSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import { onTestFinished, type TestContext } from 'vitest'
import { temporaryDirectory } from '../agent/harness.ts'

type Skip = TestContext['skip']

/** An empty file system of that size. */
export function smallDisk(skip: Skip, size: string): string {
  const path = temporaryDirectory()
  mount(skip, '-t', 'tmpfs', '-o', `size=${size}`, 'tmpfs', path)
  onTestFinished(() => void execFileSync('umount', ['-l', path]))
  return path
}

/** An empty file system of 8 MiB, half of which is for root. */
export function diskOfRoot(skip: Skip): string {
  const image = join(temporaryDirectory(), 'image')
  const path = temporaryDirectory()
  writeFileSync(image, Buffer.alloc(8 * 1024 * 1024))
  runOrSkip(skip, 'mkfs.ext4', '-q', '-m', '50', image)
  mount(skip, '-o', 'loop', image, path)
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
  runOrSkip(skip, 'mount', ...args)
}

function runOrSkip(skip: Skip, command: string, ...args: readonly string[]): void {
  try {
    execFileSync(command, args, { stdio: 'pipe' })
  } catch (error) {
    skip(`no file system can be mounted here: ${(error as Error).message}`)
  }
}
