/** Rejects if the work takes longer. @param onLate called then */
export async function within<T>(ms: number, work: Promise<T>, onLate = (): void => undefined): Promise<T> {
  let timer: NodeJS.Timeout | undefined
  const late = new Promise<never>((_resolve, reject) => {
    timer = setTimeout(() => {
      reject(new Error(`no response within ${ms} ms`))
      onLate()
    }, ms)
  })
  try {
    return await Promise.race([work, late])
  } finally {
    clearTimeout(timer)
  }
}
