/**
 * Fractions for the naive evaluator: as slow and as plain as possible, never reduced, and written apart from
 * src/core/pricing/amount.ts so that a mistake there cannot hide here.
 */

/** `top / bottom`, bottom > 0n. */
export interface Fraction {
  readonly top: bigint
  readonly bottom: bigint
}

export function whole(value: bigint): Fraction {
  return { top: value, bottom: 1n }
}

/** `digits` shifted right by `scale` decimal places. */
export function shifted(digits: bigint, scale: number): Fraction {
  let bottom = 1n
  for (let place = 0; place < scale; place += 1) bottom *= 10n
  return { top: digits, bottom }
}

export function plus(a: Fraction, b: Fraction): Fraction {
  return { top: a.top * b.bottom + b.top * a.bottom, bottom: a.bottom * b.bottom }
}

export function minus(a: Fraction, b: Fraction): Fraction {
  return { top: a.top * b.bottom - b.top * a.bottom, bottom: a.bottom * b.bottom }
}

export function times(a: Fraction, b: Fraction): Fraction {
  return { top: a.top * b.top, bottom: a.bottom * b.bottom }
}

/** `a / b`, b > 0. */
export function over(a: Fraction, b: Fraction): Fraction {
  if (b.top <= 0n) throw new RangeError('only divides by what is greater than zero')
  return { top: a.top * b.bottom, bottom: a.bottom * b.top }
}

/**
 * The nearest integer of a fraction that is not negative; a tie goes to the even neighbour. Found by looking at both
 * neighbours instead of by a formula.
 */
export function nearest({ top, bottom }: Fraction): bigint {
  if (top < 0n) throw new RangeError('only rounds what is not negative')
  const below = top / bottom
  const above = below + 1n
  const toBelow = top - below * bottom
  const toAbove = above * bottom - top
  if (toBelow === toAbove) return below % 2n === 0n ? below : above
  return toBelow < toAbove ? below : above
}
