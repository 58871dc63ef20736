/** A slot is one line with a checksum within a disk sector: a power cut leaves the old or the new content. */
import { closeSync, existsSync, fdatasync, fstatSync, fsyncSync, openSync, readFileSync, writeSync } from 'node:fs'
import { promisify } from 'node:util'
import { crc32 } from 'node:zlib'
import { CodedError } from '../../../protocol/errors.ts'
import { unwritableState } from '../../../protocol/file-reasons.ts'
import { type MarkFile, SLOT_TEXT_MAX } from '../../sync/recovery/mark-file.ts'
import { orNull } from '../../../platform/or-null.ts'
import { replaceFile } from '../../../platform/replace-file.ts'
import { readBootId } from '../../../platform/uptime.ts'

const SLOT_BYTES = 512

/** Content of a hole left by a failed write before a later one. */
const NEVER_WRITTEN = Buffer.alloc(SLOT_BYTES)

const flushData = promisify(fdatasync)

export function openMarkFile(path: string): MarkFile & { close(): void } {
  const bootId = orNull(readBootId)
  const open: { file: number | null } = { file: existsSync(path) ? openToWrite(path) : null }
  const failed: { cause?: unknown } = {}
  const opened = (): number => {
    if (open.file === null) throw new Error('invariant: a mark is begun before it is written')
    return open.file
  }
  // The state on disk is unknown: a second flush could falsely succeed.
  const unflushed = (cause: unknown): never => {
    failed.cause = cause
    throw new CodedError('NOT_RECORDED', `${path} cannot be flushed.`, { cause })
  }
  return {
    bootId,
    read: () => (open.file === null ? 'MISSING' : slotsIn(readFileSync(path))),
    begin() {
      if (open.file !== null) closeSync(open.file)
      open.file = null
      recorded(path, () => replaceFile(path, ''))
      open.file = openToWrite(path)
    },
    write(slot, text) {
      if ('cause' in failed)
        throw new CodedError(
          'NOT_RECORDED',
          `${path} cannot be written after an earlier failure. Restart the cloud.`,
          failed,
        )
      if (text.length > SLOT_TEXT_MAX) throw new Error('invariant: the text fits its slot')
      recorded(path, () => writeSync(opened(), lineOf(text), 0, SLOT_BYTES, slot * SLOT_BYTES))
    },
    flush() {
      try {
        fsyncSync(opened())
      } catch (cause) {
        unflushed(cause)
      }
    },
    async flushLater() {
      await flushData(opened()).catch(unflushed)
    },
    place() {
      const { dev, ino } = fstatSync(opened(), { bigint: true })
      return `${dev}:${ino}`
    },
    close() {
      if (open.file !== null) closeSync(open.file)
      open.file = null
    },
  }
}

function openToWrite(path: string): number {
  try {
    return openSync(path, 'r+')
  } catch (cause) {
    throw unwritableState(cause, path, `${path} cannot be opened`)
  }
}

function recorded<T>(path: string, work: () => T): T {
  try {
    return work()
  } catch (cause) {
    const message = cause instanceof Error ? cause.message : String(cause)
    throw new CodedError('NOT_RECORDED', `${path}: ${message}`, { cause })
  }
}

/** Used again by the next one. */
const LINE = Buffer.alloc(SLOT_BYTES)

function lineOf(text: string): Buffer {
  LINE.write(`${`${checksum(text)} ${text}`.padEnd(SLOT_BYTES - 1)}\n`, 'latin1')
  return LINE
}

function slotsIn(bytes: Buffer): readonly string[] | 'DAMAGED' {
  const slots: string[] = []
  // A torn last slot was never relied on.
  for (let at = 0; at + SLOT_BYTES <= bytes.length; at += SLOT_BYTES) {
    const slot = bytes.subarray(at, at + SLOT_BYTES)
    if (slot.equals(NEVER_WRITTEN)) {
      slots.push('')
      continue
    }
    const line = slot.toString('latin1').trimEnd()
    const text = line.slice(9)
    if (line.slice(0, 9) !== `${checksum(text)} `.slice(0, line.length)) return 'DAMAGED'
    slots.push(text)
  }
  return slots
}

function checksum(text: string): string {
  return crc32(text).toString(16).padStart(8, '0')
}
