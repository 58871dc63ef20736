/** Preloaded into the demo's agent: shifts its wall clock by the number of ms in a file. */
import { readFileSync } from 'node:fs'

const LOOK_EVERY_MS = 20

const file = process.env['DEMO_CLOCK_ERROR_FILE'] ?? ''
const TrueDate = Date
let errorMs = 0

function look(): void {
  try {
    errorMs = Number(readFileSync(file, 'utf8'))
  } catch {
    // The clock has not been set yet.
  }
}

class WrongDate extends TrueDate {
  constructor(...args: readonly unknown[]) {
    super(...((args.length === 0 ? [WrongDate.now()] : args) as [number]))
  }

  static override now(): number {
    return TrueDate.now() + errorMs
  }
}

look()
setInterval(look, LOOK_EVERY_MS).unref()
globalThis.Date = WrongDate as DateConstructor
