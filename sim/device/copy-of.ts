/** Copies plain data as a structured clone does. */

/** @throws Error for a function, a symbol, or an object of a class other than Map, Set and Uint8Array */
export function copyOf<T>(value: T): T {
  return copied(value) as T
}

function copied(value: unknown): unknown {
  if (typeof value === 'function' || typeof value === 'symbol') throw new Error(`a ${typeof value} is no plain data`)
  if (typeof value !== 'object' || value === null) return value
  if (Array.isArray(value)) return value.map(copied)
  if (value instanceof Map) return new Map([...value].map(([key, each]) => [copied(key), copied(each)]))
  if (value instanceof Set) return new Set([...value].map(copied))
  if (value instanceof Uint8Array && !Buffer.isBuffer(value)) return value.slice()
  const prototype: unknown = Object.getPrototypeOf(value)
  if (prototype !== Object.prototype && prototype !== null) throw new Error('an object of a class is no plain data')
  const copy: Record<string, unknown> = {}
  for (const [key, each] of Object.entries(value)) copy[key] = copied(each)
  return copy
}
