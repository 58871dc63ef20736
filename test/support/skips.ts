// A reporter that ends the run with the list of skipped tests and why each was skipped: what was not proven is said aloud.
import type { Reporter, TestModule } from 'vitest/node'

export class SkippedTests implements Reporter {
  readonly #print: (text: string) => void

  /** `print` receives the whole list at once, only when at least one test was skipped. */
  constructor(print: (text: string) => void = (text) => process.stdout.write(text)) {
    this.#print = print
  }

  onTestRunEnd(modules: readonly TestModule[]): void {
    const lines = modules.flatMap((module) =>
      [...module.children.allTests('skipped')].map((test) => {
        const result = test.result()
        const note = result.state === 'skipped' ? result.note : undefined
        return `  ${module.relativeModuleId} > ${test.fullName}: ${note ?? 'no reason given'}`
      }),
    )
    if (lines.length > 0) this.#print(`\nSkipped tests (${lines.length}):\n${lines.join('\n')}\n`)
  }
}
