/**
 * Ends the process when a test takes too much time of the processor, from a thread of its own: code that never ends may block the
 * process's own. What other processes do on the machine makes no difference. Which mutant was active is kept in a file for the process
 * that takes over.
 */
import { existsSync, readFileSync, writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { Worker, isMainThread, workerData } from 'node:worker_threads'

const CPU_MAX_MS = 5_000
const LOOK_EVERY_MS = 100
/** Stryker's process is the parent of all that it starts one after another. */
const FILE = join(tmpdir(), `tallygate-endless-${process.ppid}`)

const TEST = 0
const MUTANT = 1
const NONE = -1

export class EndlessGuard {
  readonly #shown = new Int32Array(new SharedArrayBuffer(8)).fill(NONE)

  constructor() {
    new Worker(new URL(import.meta.url), { workerData: this.#shown }).unref()
  }

  /** Whether this mutant ended an earlier process. */
  isEndless(mutant: string): boolean {
    return existsSync(FILE) && readFileSync(FILE, 'utf8') === mutant
  }

  /** A test begins, because of this mutant. */
  begin(mutant: string): void {
    Atomics.store(this.#shown, MUTANT, Number(mutant))
    Atomics.add(this.#shown, TEST, 1)
  }

  /** No test runs. */
  rest(): void {
    Atomics.store(this.#shown, MUTANT, NONE)
  }
}

if (!isMainThread) {
  const shown = workerData as Int32Array
  let test = NONE
  let start = process.cpuUsage()
  setInterval(() => {
    const present = Atomics.load(shown, TEST)
    const mutant = Atomics.load(shown, MUTANT)
    if (present !== test || mutant === NONE) {
      test = present
      start = process.cpuUsage()
    }
    const { user, system } = process.cpuUsage(start)
    if ((user + system) / 1_000 <= CPU_MAX_MS) return
    writeFileSync(FILE, String(mutant))
    process.kill(process.pid, 'SIGKILL')
  }, LOOK_EVERY_MS)
}
