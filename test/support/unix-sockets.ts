// What a service manager holds: a Unix socket that listens and is never accepted from, and one that takes datagrams. Node
// opens neither without serving it.
import { rmSync } from 'node:fs'
import koffi from 'koffi'
import { onTestFinished } from 'vitest'

const libc = koffi.load(null)
const socket = libc.func('int socket(int family, int type, int protocol)') as (...args: number[]) => number
const bind = libc.func('int bind(int fd, const void *address, uint32_t length)') as (
  fd: number,
  address: Buffer,
  length: number,
) => number
const listen = libc.func('int listen(int fd, int backlog)') as (...args: number[]) => number
const close = libc.func('int close(int fd)') as (fd: number) => number
const recv = libc.func('long recv(int fd, _Out_ void *bytes, size_t length, int flags)') as (
  fd: number,
  bytes: Buffer,
  length: number,
  flags: number,
) => number

const AF_UNIX = 1
const SOCK_STREAM = 1
const SOCK_DGRAM = 2
const SOCK_CLOEXEC = 0o2000000
const MSG_DONTWAIT = 0x40

function bound(path: string, type: number): number {
  const fd = socket(AF_UNIX, type | SOCK_CLOEXEC, 0)
  const name = Buffer.from(path.startsWith('@') ? `\0${path.slice(1)}` : `${path}\0`)
  const address = Buffer.concat([Buffer.from([AF_UNIX, 0]), name])
  if (fd < 0 || bind(fd, address, address.length) !== 0) throw new Error(`no socket at ${path}`)
  onTestFinished(() => {
    close(fd)
    if (!path.startsWith('@')) rmSync(path, { force: true })
  })
  return fd
}

/** Descriptor of a socket that listens at the path until the test is over. */
export function listeningSocket(path: string): number {
  const fd = bound(path, SOCK_STREAM)
  if (listen(fd, 4_096) !== 0) throw new Error(`nobody can listen at ${path}`)
  return fd
}

/** Takes datagrams at the path, or at an abstract name that begins with `@`; returns all that have come since the last call. */
export function datagramSocket(path: string): () => readonly string[] {
  const fd = bound(path, SOCK_DGRAM)
  return () => {
    const received: string[] = []
    for (;;) {
      const bytes = Buffer.alloc(4_096)
      const length = recv(fd, bytes, bytes.length, MSG_DONTWAIT)
      if (length < 0) return received
      received.push(bytes.toString('utf8', 0, length))
    }
  }
}
