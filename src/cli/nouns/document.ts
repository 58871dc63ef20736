/** A JSON or YAML file whose values know their lines. JSON is YAML. */
import { type Document, LineCounter, isMap, isNode, isScalar, parseDocument } from 'yaml'
import { CodedError } from '../../protocol/errors.ts'
import { readFileArgument } from '../arguments.ts'
import type { Io } from '../io.ts'

export type Path = readonly PropertyKey[]

export interface FileDocument {
  readonly value: unknown
  /** `site.yaml:12: instances[0].shortName`: the line of a value, or of the innermost one around it that exists. */
  readonly where: (path: Path) => string
}

/** @param path `-`: standard input. @throws CodedError USAGE, FILE_INVALID */
export function readDocument(path: string, io: Io): FileDocument {
  const name = path === '-' ? 'standard input' : path
  const text = readFileArgument(io, path === '-' ? '/dev/stdin' : path, 'USAGE')
  const lines = new LineCounter()
  const document = parseDocument(text, { lineCounter: lines, prettyErrors: false })
  const problems = [...document.errors, ...document.warnings].map(
    ({ message, pos: [start] }) => `${name}:${lines.linePos(start).line}: ${message}`,
  )
  if (problems.length > 0) throw new CodedError('FILE_INVALID', problems.join('; '))
  return {
    value: valueOf(() => document.toJS() as unknown, name),
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

/** `instances[0].shortName` */
function pathText(path: Path): string {
  return path.reduce<string>((text, key) => {
    if (typeof key === 'number') return `${text}[${key}]`
    return text === '' ? String(key) : `${text}.${String(key)}`
  }, '')
}
