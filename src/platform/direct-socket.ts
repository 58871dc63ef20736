/**
 * Reads and writes of accepted connections without what Node's streams add to each: 64 KiB of new memory for a read, and a
 * place in a queue for a write. docs/explanation/benchmarks.md shows the effect.
 */
import { writeSync } from 'node:fs'
import type { Socket } from 'node:net'

/** Of all connections: each read is over before the next one. */
const MEMORY = Buffer.alloc(64 * 1024)

/** What Node offers only for connections that a program opens (`onread`) is under symbols with these names. */
const [BUFFER, CALLBACK] = ['kBuffer', 'kBufferCb'] as const

interface Internals {
  readonly _handle?: { readonly fd?: unknown; readonly useUserBuffer?: (memory: Uint8Array) => void } | null
  [symbol: symbol]: unknown
}

/** Undefined for a connection that is closed. */
export function descriptorOf(socket: Socket): number | undefined {
  const { _handle: handle } = socket as unknown as Internals
  return typeof handle?.fd === 'number' && handle.fd >= 0 ? handle.fd : undefined
}

/**
 * Calls `onBytes` with what arrives, in memory that the next read uses again.
 * @returns a function that gives what arrives later to the stream, as usual
 */
export function readInPlace(socket: Socket, onBytes: (bytes: Buffer) => void): () => void {
  const internals = socket as unknown as Internals
  const { _handle: handle } = internals
  const symbolOf = (name: string): symbol | undefined =>
    Object.getOwnPropertySymbols(socket).find(({ description }) => description === name)
  const [buffer, callback] = [symbolOf(BUFFER), symbolOf(CALLBACK)]
  if (buffer === undefined || callback === undefined || typeof handle?.useUserBuffer !== 'function') {
    socket.on('data', onBytes)
    return () => socket.off('data', onBytes)
  }
  let isInPlace = true
  internals[buffer] = MEMORY
  internals[callback] = (count: number): boolean => {
    const bytes = MEMORY.subarray(0, count)
    if (!isInPlace) return socket.push(Buffer.from(bytes))
    onBytes(bytes)
    return true
  }
  handle.useUserBuffer(MEMORY)
  return () => {
    isInPlace = false
  }
}

/** What the kernel does not take at once waits in the stream. */
export function writeNow(socket: Socket, text: string, encoding: 'latin1' | 'utf8'): void {
  // A TLS connection has the descriptor of its plain one: its stream encrypts.
  const isDirect = socket.writableLength === 0 && !('encrypted' in socket)
  const descriptor = isDirect ? descriptorOf(socket) : undefined
  const written = descriptor === undefined ? 0 : writtenTo(descriptor, text, encoding)
  if (written === 0) socket.write(text, encoding)
  else if (written < Buffer.byteLength(text, encoding)) socket.write(Buffer.from(text, encoding).subarray(written))
}

function writtenTo(descriptor: number, text: string, encoding: 'latin1' | 'utf8'): number {
  try {
    return writeSync(descriptor, text, null, encoding)
  } catch {
    // The kernel takes nothing now, or the stream meets the same error.
    return 0
  }
}
