/** The detail of an audit record for people. */
import { INSTANT_MAX } from '../wire.ts'

const INSTANTS: ReadonlySet<string> = new Set(['effectiveFrom', 'end', 'expiresAt', 'nextReset', 'start'])

/** Numbers as the caller wrote them; the record has their values too. */
const AS_WRITTEN = 'given'

/** Such as `series: laser; version: 2; effective from: 2026-05-01T00:00:00Z`. What is not set is left out. */
export function detailInWords(detail: string): string {
  return pairsOf(JSON.parse(detail) as object, (name) => `${inWords(name)}: `, '; ')
}

function pairsOf(object: object, label: (name: string) => string, separator: string): string {
  return Object.entries(object)
    .filter(([name]) => name !== AS_WRITTEN)
    .map(([name, value]) => [name, valueText(name, value)] as const)
    .filter(([, text]) => text !== '')
    .map(([name, text]) => `${label(name)}${text}`)
    .join(separator)
}

function valueText(name: string, value: unknown): string {
  if (typeof value === 'number' && INSTANTS.has(name)) return instantText(value)
  if (value === null) return ''
  if (Array.isArray(value)) return value.map((each) => valueText('', each)).join(', ')
  if (typeof value === 'object') return pairsOf(value, (each) => `${each}=`, ' ')
  return typeof value === 'string' ? value : JSON.stringify(value)
}

/** Empty at the ends of time, which set no limit. */
function instantText(at: number): string {
  return at === 0 || at === INSTANT_MAX ? '' : new Date(at).toISOString().replace('.000Z', 'Z')
}

/** `effectiveFrom`: effective from. Names with dots are settings. */
function inWords(name: string): string {
  return name.replaceAll(/[A-Z]/g, (letter) => ` ${letter.toLowerCase()}`)
}
