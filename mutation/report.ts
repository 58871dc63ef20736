/** Reads the report of the last run of an area. */
import { existsSync, readFileSync } from 'node:fs'
import type { Area } from './areas.ts'

interface Place {
  readonly line: number
  readonly column: number
}

interface Mutant {
  readonly mutatorName: string
  readonly replacement?: string
  readonly status: string
  readonly location: { readonly start: Place; readonly end: Place }
}

interface Report {
  readonly files: Readonly<Record<string, { readonly source: string; readonly mutants: readonly Mutant[] }>>
}

export interface Survivor {
  readonly file: string
  readonly line: number
  /** The lines that the mutant changes, without indentation. */
  readonly lines: string
  readonly before: string
  readonly after: string
}

export interface Score {
  readonly area: Area
  readonly mutants: number
  readonly killed: number
  /** Of those that were killed: the ones that never ended. */
  readonly endless: number
  readonly survivors: readonly Survivor[]
}

export function reportPath(area: Area): string {
  return `.tallygate/mutation/${area.name}/report.json`
}

export function survivorsPath(area: Area): string {
  return `.tallygate/mutation/${area.name}/survivors.md`
}

/** Null where the area was never run. */
export function scoreOf(area: Area): Score | null {
  const path = reportPath(area)
  if (!existsSync(path)) return null
  const { files } = JSON.parse(readFileSync(path, 'utf8')) as Report
  const counted = Object.entries(files).flatMap(([file, { source, mutants }]) =>
    mutants
      .filter(({ status }) => ['Killed', 'Timeout', 'Survived', 'NoCoverage'].includes(status))
      .map((mutant) => ({ file, source, mutant })),
  )
  const survivors = counted
    .filter(({ mutant: { status } }) => status === 'Survived' || status === 'NoCoverage')
    .map(({ file, source, mutant }) => survivorOf(file, source, mutant))
    .toSorted((a, b) => (a.file === b.file ? a.line - b.line : a.file < b.file ? -1 : 1))
  const endless = counted.filter(({ mutant: { status } }) => status === 'Timeout').length
  return { area, mutants: counted.length, killed: counted.length - survivors.length, endless, survivors }
}

function survivorOf(file: string, source: string, { location: { start, end }, replacement = '' }: Mutant): Survivor {
  const lines = source.split('\n').slice(start.line - 1, end.line)
  const text = lines.join('\n')
  const before = text.slice(start.column - 1, text.length - ((lines.at(-1)?.length ?? 0) - (end.column - 1)))
  return { file, line: start.line, lines: oneLine(text), before: oneLine(before), after: oneLine(replacement) }
}

/** Without line breaks and indentation. */
export function oneLine(text: string): string {
  return text.replaceAll(/\s+/g, ' ').trim()
}

export function percent({ killed, mutants }: Pick<Score, 'killed' | 'mutants'>): string {
  return mutants === 0 ? '–' : `${((100 * killed) / mutants).toFixed(1)} %`
}
