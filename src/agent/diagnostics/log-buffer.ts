/** The agent's last log lines in memory, for devices without a system journal. Bounded in lines and text. */

const LINES_MAX = 2_000

const TEXT_MAX = 1_000_000

export class LogBuffer {
  #lines: string[] = []
  #length = 0

  add(line: string): void {
    this.#lines.push(line)
    this.#length += line.length
    if (this.#lines.length > 2 * LINES_MAX || this.#length > 2 * TEXT_MAX) this.#shorten()
  }

  text(): string {
    this.#shorten()
    return this.#lines.join('')
  }

  #shorten(): void {
    let length = 0
    let count = 0
    for (const line of this.#lines.toReversed()) {
      length += line.length
      if (count >= LINES_MAX || length > TEXT_MAX) break
      count += 1
    }
    this.#lines = count === 0 ? [] : this.#lines.slice(-count)
    this.#length = this.#lines.reduce((sum, line) => sum + line.length, 0)
  }
}
