/** File system of the measured servers, and the time of a small durable write. */
import { closeSync, fdatasyncSync, openSync, readFileSync, realpathSync, rmSync, writeSync } from 'node:fs'
import { join } from 'node:path'
import { median } from '../load/latency.ts'

export interface Storage {
  readonly fileSystem: string
  readonly device: string
  /** A 4 KiB append to a growing file, median, ms. */
  readonly appendMs: number
  /** A 4 KiB overwrite, median, ms. */
  readonly overwriteMs: number
}

const SAMPLES = 200
const BLOCK = Buffer.alloc(4096, 1)

/** @param directory where the servers keep their data; left unchanged */
export function measureStorage(directory: string): Storage {
  const path = join(directory, 'flush-probe')
  const file = openSync(path, 'wx')
  try {
    const flushed = (position: number): number => {
      writeSync(file, BLOCK, 0, BLOCK.length, position)
      const begin = performance.now()
      fdatasyncSync(file)
      return performance.now() - begin
    }
    const positions = Array.from({ length: SAMPLES }, (_, index) => index * BLOCK.length)
    const appendMs = median(positions.map(flushed))
    const overwriteMs = median(positions.map(flushed))
    return { ...mountOf(realpathSync(directory)), appendMs, overwriteMs }
  } finally {
    closeSync(file)
    rmSync(path)
  }
}

function mountOf(path: string): { fileSystem: string; device: string } {
  let best = { point: '', fileSystem: 'unknown', device: 'unknown' }
  for (const line of readFileSync('/proc/self/mounts', 'utf8').split('\n')) {
    const [device = '', point = '', fileSystem = ''] = line.split(' ')
    const holds = path === point || path.startsWith(point.endsWith('/') ? point : `${point}/`)
    if (holds && point.length >= best.point.length) best = { point, fileSystem, device }
  }
  return { fileSystem: best.fileSystem, device: best.device }
}
