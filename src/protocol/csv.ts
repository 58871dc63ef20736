/** Includes full-width forms, which some spreadsheets treat alike. */
const FORMULA_OR_APOSTROPHE = /^[=+\-@'\t\r\n＝＋－＠]/

/** A text as a field. Possible formulas and texts with a leading apostrophe get an apostrophe in front. */
export function csvField(text: string): string {
  const safe = FORMULA_OR_APOSTROPHE.test(text) ? `'${text}` : text
  return /[",\r\n]/.test(safe) ? `"${safe.replaceAll('"', '""')}"` : safe
}
