/** Arguments of development scripts. */

/** @throws Error for another text */
export function wholeNumber(option: string, text: string, max = Number.MAX_SAFE_INTEGER): number {
  const number = Number(text)
  if (Number.isSafeInteger(number) && number >= 1 && number <= max) return number
  throw new Error(`${option} takes a whole number from 1 to ${max}, not '${text}'`)
}

/** Of a list with commas. @throws Error for another text */
export function wholeNumbers(option: string, text: string, max?: number): readonly number[] {
  return text.split(',').map((part) => wholeNumber(option, part.trim(), max))
}
