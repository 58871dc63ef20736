/** Rejects if the work takes longer. @param onLate called then */
export async function within<T>(ms: number, work: Promise<T>, onLate = (): void => undefined): Promise<T> {
  const late = Promise.withResolvers<never>()
  const timer = setTimeout(() => {
    late.reject(new Error(`no response within ${ms} ms`))
    onLate()
  }, ms)
  try {
    return await Promise.race([work, late.promise])
  } finally {
    clearTimeout(timer)
  }
}
