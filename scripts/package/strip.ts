/** Removes what no process maps from a program: symbols, debugging information and section headers. Any machine can do it. */
import { closeSync, ftruncateSync, openSync, readSync, writeSync } from 'node:fs'

const HEADER_BYTES = 64
const LOAD = 1

/** Offsets in the header of a 64-bit little-endian ELF file. */
const AT = { programHeaders: 32, sectionHeaders: 40, programHeaderSize: 54, programHeaderCount: 56, sectionCount: 60 }

/** @throws Error if the file is not a 64-bit little-endian ELF program */
export function strip(path: string): void {
  const file = openSync(path, 'r+')
  try {
    const header = Buffer.alloc(HEADER_BYTES)
    readSync(file, header, 0, HEADER_BYTES, 0)
    if (header.toString('latin1', 0, 6) !== '\x7fELF\x02\x01') throw new Error(`${path} is not a 64-bit ELF file`)
    const size = header.readUInt16LE(AT.programHeaderSize)
    const table = Buffer.alloc(size * header.readUInt16LE(AT.programHeaderCount))
    readSync(file, table, 0, table.length, Number(header.readBigUInt64LE(AT.programHeaders)))
    let end = 0
    for (let at = 0; at < table.length; at += size) {
      if (table.readUInt32LE(at) !== LOAD) continue
      end = Math.max(end, Number(table.readBigUInt64LE(at + 8) + table.readBigUInt64LE(at + 32)))
    }
    if (end === 0) throw new Error(`${path} loads nothing`)
    header.writeBigUInt64LE(0n, AT.sectionHeaders)
    // The number of section headers, and which of them names the others.
    header.writeUInt32LE(0, AT.sectionCount)
    writeSync(file, header, 0, HEADER_BYTES, 0)
    ftruncateSync(file, end)
  } finally {
    closeSync(file)
  }
}
