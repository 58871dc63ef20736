// A reporter that ends the run with the list of skipped tests and why each was skipped: what was not proven is said aloud.
import type { Reporter, TestModule, Vitest } from 'vitest/node'

export class SkippedTests implements Reporter {
  readonly #print: (text: string) => void
  #byName = false

  /** `print` receives the whole list at once, only when at least one test was skipped. */
  constructor(print: (text: string) => void = (text) => process.stdout.write(text)) {
    this.#print = print
  }

  onInit(vitest: Vitest): void {
    this.#byName = vitest.config.testNamePattern !== undefined
  }

  onTestRunEnd(modules: readonly TestModule[]): void {
    const lines = modules.flatMap((module) =>
      [...module.children.allTests('skipped')].flatMap((test) => {
        const result = test.result()
        const note = result.state === 'skipped' ? result.note : undefined
        // Where the caller chose tests by name, those left out are skipped too, without a report.
        if (note === undefined && this.#byName) return []
        return [`  ${module.relativeModuleId} > ${test.fullName}: ${note ?? 'no reason given'}`]
      }),
    )
    if (lines.length > 0) this.#print(`\nSkipped tests (${lines.length}):\n${lines.join('\n')}\n`)
  }
}
