// Reasons of survivors name texts of their file, which change with it.
import { existsSync, readFileSync } from 'node:fs'
import { fileURLToPath } from 'node:url'
import { expect, test } from 'vitest'
import { oneLine } from '../../mutation/report.ts'
import { SINGLE } from '../../mutation/survivors.ts'

const root = fileURLToPath(new URL('../..', import.meta.url))

const sourceOf = (file: string): string =>
  existsSync(`${root}/${file}`) ? oneLine(readFileSync(`${root}/${file}`, 'utf8')) : ''

/** Where its groups choose, one pattern for each choice. */
function choices(pattern: string): readonly string[] {
  const starts: number[] = []
  let isClass = false
  for (let at = 0; at < pattern.length; at += 1) {
    const character = pattern[at]
    if (character === '\\') at += 1
    else if (isClass) isClass = character !== ']'
    else if (character === '[') isClass = true
    else if (character === '(') starts.push(at)
    else if (character === ')') starts.pop()
    else if (character === '|') {
      const start = starts.at(-1) ?? -1
      const end = endOf(pattern, at)
      const open = pattern.slice(0, start + 1) + (pattern.startsWith('?:', start + 1) ? '?:' : '')
      const first = pattern.slice(open.length, at)
      const rest = pattern.slice(at + 1, end)
      return [first, rest].flatMap((choice) => choices(open + choice + pattern.slice(end)))
    }
  }
  return [pattern]
}

/** Of the innermost group around the position. */
function endOf(pattern: string, from: number): number {
  let [depth, isClass] = [0, false]
  for (let at = from; at < pattern.length; at += 1) {
    const character = pattern[at]
    if (character === '\\') at += 1
    else if (isClass) isClass = character !== ']'
    else if (character === '[') isClass = true
    else if (character === '(') depth += 1
    else if (character === ')' && depth === 0) return at
    else if (character === ')') depth -= 1
  }
  return pattern.length
}

/** A mutated text begins and ends within a line, but not within a word. */
function within(pattern: string): RegExp {
  return new RegExp(
    pattern
      .replace(/^((?:\(\?:|\()*)\^/, String.raw`$1(?:(?<!\w|[\w)\]?]\.)(?=\w)|(?=\W))`)
      .replace(/(?<!\\)\$((?:\))*)$/, String.raw`(?:(?<=\w)(?!\w)|(?<=\W))$1`),
  )
}

function isIn(source: string, text: string | RegExp): boolean {
  if (text instanceof RegExp) return choices(text.source).every((choice) => within(choice).test(source))
  return source.includes(text) || source.includes(text.split(' → ')[0] ?? text)
}

/** `file: text` of each that is nowhere in the file. */
function missing(find: (file: string) => string): readonly string[] {
  return Object.entries(SINGLE).flatMap(([file, reasons]) =>
    reasons
      .flatMap(([texts, , on]) => [texts, on ?? []].flat())
      .filter((text) => !isIn(find(file), text))
      .map((text) => `${file}: ${String(text)}`),
  )
}

test('each reason names texts of its file', () => {
  expect(missing(sourceOf)).toEqual([])
})

test('a text that is gone is found, also as one of several', () => {
  expect(isIn('if (left === 0n) return right', /^(left|right) === 0n$/)).toBe(false)
  expect(isIn('if (left === 0n || right === 0n) return', /^(left|right) === 0n$/)).toBe(true)
  expect(isIn('if (left === 0n)', /^eft === 0n$|^left ===/)).toBe(false)
  expect(isIn('const one = [1]', 'one → two')).toBe(true)
  expect(missing(() => '').length).toBeGreaterThan(0)
})
