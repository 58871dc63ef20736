/** Sums by name, micro-tokens, independent of the product. */

export class Books {
  readonly #sums = new Map<string, bigint>()

  get(name: string): bigint {
    return this.#sums.get(name) ?? 0n
  }

  add(name: string, amount: bigint): bigint {
    const sum = this.get(name) + amount
    this.#sums.set(name, sum)
    return sum
  }

  clear(): void {
    this.#sums.clear()
  }

  names(): Iterable<string> {
    return this.#sums.keys()
  }

  entries(): Iterable<readonly [string, bigint]> {
    return this.#sums
  }
}
