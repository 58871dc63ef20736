import { createRequire } from 'node:module'

type Call = (...args: readonly unknown[]) => number

interface Koffi {
  load(path: null): { func(declaration: string): Call }
  errno(): number
  readonly os: { readonly errno: Readonly<Record<string, number>> }
}

/**
 * A function of the C library that returns 0 unless it fails. The result returns the name of the error, such as `EAGAIN`, or null.
 * @throws where the library cannot be called
 */
export function libcCall(declaration: string): (...args: readonly unknown[]) => string | null {
  const { default: koffi } = createRequire(import.meta.url)('koffi') as { default: Koffi }
  const call = koffi.load(null).func(declaration)
  return (...args) => {
    if (call(...args) === 0) return null
    const errno = koffi.errno()
    return Object.entries(koffi.os.errno).find(([, number]) => number === errno)?.[0] ?? String(errno)
  }
}
