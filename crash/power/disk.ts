/**
 * A disk model driven by system calls: flushed data persists, any part of the rest may. A file's name persists with a
 * flush of its directory. An image is one possible state after a power cut.
 */
import { mkdirSync, readFileSync, writeFileSync } from 'node:fs'
import { dirname, join, relative } from 'node:path'
import type { Random } from '../../src/demo/random.ts'
import { type Moment, quotedBytes, type SystemCall, targetOf } from '../trace/calls.ts'

export const FATES = ['dropped', 'kept', 'first ones kept', 'some kept', 'torn', 'torn over garbage'] as const
export type Fate = (typeof FATES)[number]

const SECTOR_BYTES = 512

interface Change {
  readonly call: SystemCall
  hasEnded: boolean
}

interface FileChange extends Change {
  readonly offset: number
  /** Null: the file is truncated at `offset`. */
  readonly bytes: Buffer | null
}

interface NameChange extends Change {
  readonly path: string
  readonly node: Node | null
}

class File {
  #bytes: Buffer = Buffer.alloc(0)
  size = 0
  pending: FileChange[] = []

  flush(covered: ReadonlySet<Change>): void {
    for (const change of this.pending) if (covered.has(change)) this.#apply(change)
    this.pending = this.pending.filter((change) => !covered.has(change))
  }

  durable(): Buffer {
    return this.#bytes.subarray(0, this.size)
  }

  #apply({ offset, bytes }: FileChange): void {
    const end = bytes === null ? offset : offset + bytes.length
    if (end > this.#bytes.length) {
      const grown = Buffer.alloc(end * 2)
      this.durable().copy(grown)
      this.#bytes = grown
    }
    if (bytes === null) {
      this.#bytes.fill(0, offset)
      this.size = offset
    } else {
      bytes.copy(this.#bytes, offset)
      this.size = Math.max(this.size, end)
    }
  }
}

type Node = File | 'directory'

interface Descriptor {
  readonly file: File
  position: number
}

export class Disk {
  readonly #root: string
  readonly #names = new Map<string, Node>()
  readonly #durableNames = new Map<string, Node>()
  #pendingNames: NameChange[] = []
  #descriptors = new Map<number, Descriptor>()
  readonly #flushes = new Map<SystemCall, ReadonlySet<Change>>()

  /** @param root an existing directory, empty at the program's start; only files below it are tracked */
  constructor(root: string) {
    this.#root = root
  }

  /**
   * The program ended or was killed: its files are closed, unflushed data stays unflushed. Whether an interrupted write
   * took place is read from `left`, which must match the model.
   * @param left a copy of the root as the program left it
   * @throws Error if a file differs: the trace is incomplete
   */
  endLife(left: string): void {
    this.#descriptors = new Map()
    for (const [path, node] of this.#names) {
      if (node === 'directory') continue
      const real = readFileSync(join(left, relative(this.#root, path)))
      node.pending = node.pending.filter((change) => {
        const { offset, bytes, hasEnded } = change
        if (!hasEnded) change.hasEnded = bytes?.equals(real.subarray(offset, offset + bytes.length)) === true
        return change.hasEnded
      })
      if (!imageOf(node, () => true, 'kept').equals(real))
        throw new Error(`the trace does not explain what ${path} holds`)
    }
  }

  take(moment: Moment): boolean {
    const { call } = moment
    switch (call.name) {
      case 'openat':
        return moment.kind === 'end' && this.#open(call, moment.result ?? -1)
      case 'write':
      case 'pwrite64':
        return this.#write(moment)
      case 'ftruncate':
        return this.#truncate(moment)
      case 'fsync':
      case 'fdatasync':
        return this.#flush(moment)
      case 'mkdir':
      case 'link':
      case 'rename':
      case 'unlink':
      case 'mkdirat':
      case 'linkat':
      case 'renameat':
      case 'renameat2':
      case 'unlinkat':
        return moment.kind === 'end' && moment.result === 0 && this.#rename(call)
      case 'close':
      case 'mmap':
      case 'io_uring_setup':
        return false
      default:
        if (this.#isTracked(pathOf(call)))
          throw new Error(`line ${call.line}: ${call.name} of ${pathOf(call)} is not modelled`)
        return false
    }
  }

  get atRisk(): number {
    return this.#files().reduce((sum, { pending }) => sum + pending.length, this.#pendingNames.length)
  }

  /** Writes one possible state after a cut now into the directory `into`. */
  writeImage(into: string, fate: Fate, random: Random): void {
    const keep = this.#judge(fate, random)
    const names = new Map(this.#durableNames)
    for (const change of this.#pendingNames) {
      if (!keep(change)) continue
      if (change.node === null) names.delete(change.path)
      else names.set(change.path, change.node)
    }
    const isReachable = (path: string): boolean =>
      path === this.#root || (names.get(path) === 'directory' && isReachable(dirname(path)))
    for (const [path, node] of names) {
      if (!isReachable(dirname(path))) continue
      const target = join(into, relative(this.#root, path))
      mkdirSync(node === 'directory' ? target : dirname(target), { recursive: true })
      if (node !== 'directory') writeFileSync(target, imageOf(node, keep, fate, random), { mode: 0o600 })
    }
  }

  #judge(fate: Fate, random: Random): (change: Change) => boolean {
    switch (fate) {
      case 'dropped':
        return () => false
      case 'kept':
        return ({ hasEnded }) => hasEnded
      case 'first ones kept': {
        const all = [...this.#files().flatMap(({ pending }) => pending), ...this.#pendingNames]
        const inOrder = all.sort((a, b) => a.call.line - b.call.line)
        const kept = new Set<Change>(inOrder.slice(0, random.between(0, inOrder.length)))
        return (change) => kept.has(change)
      }
      case 'some kept':
      case 'torn':
      case 'torn over garbage':
        return () => random.fraction() < 0.5
    }
  }

  #files(): readonly File[] {
    const nodes = new Set([...this.#names.values(), ...this.#durableNames.values()])
    return [...nodes].filter((node) => node instanceof File)
  }

  /** SQLite rebuilds the index of its log; the disk reserve has no content. */
  #isTracked(path: string): boolean {
    return path.startsWith(`${this.#root}/`) && !path.endsWith('-shm') && !path.endsWith('-disk-reserve')
  }

  #open({ args, line, name }: SystemCall, descriptor: number): boolean {
    if (descriptor < 0) return false
    this.#descriptors.delete(descriptor)
    const { bytes, end } = quotedBytes(args)
    const path = bytes.toString('utf8')
    if (!this.#isTracked(path)) return false
    let node = this.#names.get(path)
    const flags = args.slice(end)
    const call: SystemCall = { thread: 0, name, args, line }
    let isChange = false
    if (node === undefined) {
      if (!flags.includes('O_CREAT')) throw new Error(`line ${line}: ${path} is open and unknown`)
      node = new File()
      this.#name({ call, hasEnded: true, path, node })
      isChange = true
    }
    if (node === 'directory') return false
    if (flags.includes('O_TRUNC')) {
      node.pending.push({ call, hasEnded: true, offset: 0, bytes: null })
      isChange = true
    }
    this.#descriptors.set(descriptor, { file: node, position: 0 })
    return isChange
  }

  #write(moment: Moment): boolean {
    const { call } = moment
    const path = pathOf(call)
    if (!this.#isTracked(path)) return false
    const descriptor = this.#descriptors.get(Number.parseInt(call.args, 10))
    if (descriptor === undefined) throw new Error(`line ${call.line}: a write to ${path}, which is not open`)
    const { file } = descriptor
    if (moment.kind === 'end') {
      // Killed during the call: the end of the life shows its result.
      if (moment.result === null) return false
      const change = file.pending.find((one) => one.call === call)
      if (change === undefined || moment.result !== change.bytes?.length)
        throw new Error(`line ${call.line}: a short write`)
      change.hasEnded = true
      return true
    }
    // An address: the thread was killed at the start of the call, which is not carried out.
    if (!call.args.includes('"')) return false
    const { bytes, end } = quotedBytes(call.args)
    const [, offset] = /^, \d+(?:, (\d+))?/.exec(call.args.slice(end)) ?? []
    file.pending.push({
      call,
      hasEnded: false,
      offset: offset === undefined ? descriptor.position : Number(offset),
      bytes,
    })
    if (offset === undefined) descriptor.position += bytes.length
    return true
  }

  #truncate(moment: Moment): boolean {
    const { call } = moment
    if (moment.kind === 'begin' || moment.result !== 0 || !this.#isTracked(pathOf(call))) return false
    const node = this.#names.get(pathOf(call))
    if (!(node instanceof File)) throw new Error(`line ${call.line}: ${pathOf(call)} is truncated and unknown`)
    const size = Number(/, (\d+)$/.exec(call.args)?.[1])
    node.pending.push({ call, hasEnded: true, offset: size, bytes: null })
    return true
  }

  #flush(moment: Moment): boolean {
    const { call } = moment
    const path = pathOf(call)
    const node = path === this.#root ? 'directory' : this.#names.get(path)
    if (node === undefined) return false
    const pending: readonly Change[] =
      node === 'directory' ? this.#pendingNames.filter((change) => dirname(change.path) === path) : node.pending
    if (moment.kind === 'begin') {
      this.#flushes.set(call, new Set(pending.filter(({ hasEnded }) => hasEnded)))
      return false
    }
    const covered = this.#flushes.get(call)
    this.#flushes.delete(call)
    if (moment.result !== 0 || covered === undefined) return false
    if (node !== 'directory') node.flush(covered)
    else {
      for (const change of this.#pendingNames) {
        if (!covered.has(change)) continue
        if (change.node === null) this.#durableNames.delete(change.path)
        else this.#durableNames.set(change.path, change.node)
      }
      this.#pendingNames = this.#pendingNames.filter((change) => !covered.has(change))
    }
    return true
  }

  #rename(call: SystemCall): boolean {
    const paths: string[] = []
    for (let from = call.args.indexOf('"'); from >= 0;) {
      const { bytes, end } = quotedBytes(call.args, from)
      paths.push(bytes.toString('utf8'))
      from = call.args.indexOf('"', end)
    }
    const [one = '', other = ''] = paths
    const what = call.name.replace(/at2?$/, '')
    if (!this.#isTracked(what === 'mkdir' || what === 'unlink' ? one : other)) return false
    const of = (path: string): Node | null => this.#names.get(path) ?? null
    if (what === 'mkdir') this.#name({ call, hasEnded: true, path: one, node: 'directory' })
    else if (what === 'unlink') this.#name({ call, hasEnded: true, path: one, node: null })
    // A socket has no content.
    else if (of(one) !== null) {
      this.#name({ call, hasEnded: true, path: other, node: of(one) })
      if (what === 'rename') this.#name({ call, hasEnded: true, path: one, node: null })
    }
    return true
  }

  #name(change: NameChange): void {
    if (change.node === null) this.#names.delete(change.path)
    else this.#names.set(change.path, change.node)
    this.#pendingNames.push(change)
  }
}

function imageOf(file: File, keep: (change: Change) => boolean, fate: Fate, random?: Random): Buffer {
  const isTorn = fate === 'torn' || fate === 'torn over garbage'
  const most = file.pending.reduce(
    (size, { offset, bytes }) => Math.max(size, offset + (bytes?.length ?? 0)),
    file.size,
  )
  const image = Buffer.alloc(most)
  let size = file.size
  // Earlier content of newly allocated blocks.
  if (fate === 'torn over garbage' && random !== undefined)
    for (let at = size; at < most; at += 1) image[at] = random.between(0, 255)
  file.durable().copy(image)
  for (const change of file.pending) {
    const { offset, bytes } = change
    if (bytes === null) {
      if (!keep(change)) continue
      image.fill(0, Math.min(size, offset), size)
      size = offset
      continue
    }
    const step = isTorn ? SECTOR_BYTES : bytes.length
    for (let from = 0; from < bytes.length;) {
      const to = Math.min(bytes.length, from + step - (isTorn ? (offset + from) % SECTOR_BYTES : 0))
      if (keep(change)) {
        bytes.copy(image, offset + from, from, to)
        size = Math.max(size, offset + to)
      }
      from = to
    }
  }
  return image.subarray(0, size)
}

function pathOf(call: SystemCall): string {
  return targetOf(call)
    .replace(/ ?\(deleted\)$/, '')
    .replace(/>$/, '')
}
