/** A JSON or YAML file whose values know their lines. JSON is YAML. */
import { type Document, LineCounter, isMap, isNode, isPair, isScalar, parseDocument, visit } from 'yaml'
import { counted } from '../../core/accounts/in-words.ts'
import { parseDecimal } from '../../core/pricing/amount.ts'
import { CodedError } from '../../protocol/errors.ts'
import { isTooDeep } from '../../protocol/parse-json.ts'
import { digitsProblem, tokenDigitsProblem } from '../../protocol/typed-number.ts'
import { STANDARD_INPUT, readFileArgument } from '../arguments.ts'
import type { Io } from '../io.ts'

export type Path = readonly PropertyKey[]

export interface FileDocument {
  readonly value: unknown
  /** `site.yaml:12: instances[0].shortName`: the line of a value, or of the innermost one around it that exists. */
  readonly where: (path: Path) => string
}

/** Larger documents need gigabytes of memory to parse. */
const CHARACTERS_MAX = 8 * 1024 * 1024

const PROBLEMS_MAX = 10

/** Messages of the parser that are addressed to programmers. */
const PARSER_MESSAGES: Readonly<Record<string, string>> = {
  MULTIPLE_DOCS: 'a second document begins: put each document into its own file',
  RESOURCE_EXHAUSTION: 'it is nested too deeply',
}

export function readDocument(path: string, io: Io): FileDocument {
  const name = path === '-' ? 'standard input' : path
  const text = readFileArgument(io, path === '-' ? STANDARD_INPUT : path, 'USAGE')
  if (text.trim() === '') throw new CodedError('FILE_INVALID', `${name} is empty`)
  if (text.length > CHARACTERS_MAX)
    throw new CodedError('FILE_INVALID', `${name} is larger than 8 MiB: split it into several files`)
  const lines = new LineCounter()
  const document = parseDocument(text, { lineCounter: lines, prettyErrors: false })
  // Where the parser runs out of stack, its other errors may be results of that.
  const tooDeep = document.errors.filter(({ code }) => code === 'RESOURCE_EXHAUSTION')
  const problems = (tooDeep.length > 0 ? tooDeep : [...document.errors, ...document.warnings]).map(
    ({ code, message, pos: [start] }) => `${name}:${lines.linePos(start).line}: ${PARSER_MESSAGES[code] ?? message}`,
  )
  if (problems.length === 0) problems.push(...roundedNumbers(document, (at) => `${name}:${lines.linePos(at).line}`))
  if (problems.length > 0) throw invalidFile([...new Set(problems)])
  const value = valueOf(() => document.toJS() as unknown, name)
  if (isTooDeep(text, value)) throw new CodedError('FILE_INVALID', `${name} is nested too deeply`)
  return {
    value,
    where: (of) => {
      const keys = of.map((key) => (typeof key === 'symbol' ? String(key) : key))
      for (let length = keys.length; length >= 0; length -= 1) {
        const start = startOf(document, keys.slice(0, length))
        if (start !== undefined)
          return `${name}:${lines.linePos(start).line}${keys.length === 0 ? '' : `: ${pathText(keys)}`}`
      }
      return `${name}:1`
    },
  }
}

export function invalidFile(problems: readonly string[]): CodedError {
  return new CodedError('FILE_INVALID', firstOf(problems))
}

/**
 * A file may have thousands of problems.
 * @param isWhole false: the list may itself be the first of more
 */
export function firstOf(problems: readonly string[], isWhole = true): string {
  const more = problems.length - PROBLEMS_MAX
  const rest = isWhole ? counted(more, 'more problem', 'more problems') : 'more problems'
  return problems.slice(0, PROBLEMS_MAX).join('; ') + (more > 0 ? `; and ${rest}` : '')
}

/** @param placeOf offset in the text */
function roundedNumbers(document: Document, placeOf: (offset: number) => string): readonly string[] {
  const found: string[] = []
  visit(document, {
    Scalar: (_key, { value, source = '', range }, path) => {
      const pair = path.at(-1)
      const isRate = isPair(pair) && isScalar(pair.key) && pair.key.value === 'rate'
      const problemOf = isRate ? digitsProblem : tokenDigitsProblem
      if (typeof value !== 'number') return
      // YAML writes some decimals in other ways than JSON.
      const text = source.replace(/^\+/, '').replace(/^-?(?=\.)/, '$&0')
      const isReadable = Number.isSafeInteger(value) || parseDecimal(text) !== undefined
      const problem = isReadable ? problemOf(text) : 'is no decimal in the supported range'
      if (problem !== undefined) found.push(`${placeOf(range?.[0] ?? 0)}: ${source} ${problem}`)
    },
  })
  return found
}

/** Where a value begins; in a map, where its key does. */
function startOf(document: Document, keys: readonly (string | number)[]): number | undefined {
  const parent = document.getIn(keys.slice(0, -1), true)
  if (keys.length > 0 && isMap(parent)) {
    const pair = parent.items.find(({ key }) => isScalar(key) && String(key.value) === String(keys.at(-1)))
    return isScalar(pair?.key) ? pair.key.range?.[0] : undefined
  }
  const node = document.getIn(keys, true)
  return isNode(node) ? node.range?.[0] : undefined
}

/** Aliases can be wrong, or expand to more than memory holds. */
function valueOf(read: () => unknown, name: string): unknown {
  try {
    return read()
  } catch (cause) {
    throw new CodedError('FILE_INVALID', `${name}: ${(cause as Error).message}`, { cause })
  }
}

function pathText(path: Path): string {
  return path.reduce<string>((text, key) => {
    if (typeof key === 'number') return `${text}[${key}]`
    return text === '' ? String(key) : `${text}.${String(key)}`
  }, '')
}
